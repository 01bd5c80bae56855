/* An ordinary program that names a function of the private node: it must not link. */
unsigned omniverb_private_version(void);

int main(void)
{
    return (int)omniverb_private_version();
}
