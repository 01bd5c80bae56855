/* A library of a later release, which wants a node that the owner of today does not have. */
__asm__(".symver omniverb_private_version, omniverb_private_version@OMNIVERB_PRIVATE_2");
unsigned omniverb_private_version(void);

unsigned later_version(void);
unsigned later_version(void)
{
    return omniverb_private_version();
}
