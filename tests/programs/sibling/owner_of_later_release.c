/* What library_of_later_release.c is linked with: nothing else is made of it. */
unsigned omniverb_private_version(void);
unsigned omniverb_private_version(void)
{
    return 0;
}
