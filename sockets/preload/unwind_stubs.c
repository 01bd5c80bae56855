/*
 * What Rust's library wants of libgcc_s to print a panic's backtrace: nothing of the kind is here.
 So
 * a program needs no library more when it preloads ours, and one from an image that has no libgcc_s
 * starts. Code that is built to abort has no frames that unwinding stops at; libc brings an
 unwinder
 * of its own when it cancels a thread.
 */
#include <stdlib.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define NEVER(name) HIDDEN void name(void); HIDDEN void name(void) { abort(); }

NEVER(_Unwind_GetDataRelBase)
NEVER(_Unwind_GetIP)
NEVER(_Unwind_GetIPInfo)
NEVER(_Unwind_GetLanguageSpecificData)
NEVER(_Unwind_GetRegionStart)
NEVER(_Unwind_GetTextRelBase)
NEVER(_Unwind_Resume)
NEVER(_Unwind_SetGR)
NEVER(_Unwind_SetIP)
NEVER(_Unwind_GetCFA)
NEVER(_Unwind_FindEnclosingFunction)
NEVER(_Unwind_RaiseException)
NEVER(_Unwind_DeleteException)

/* Of no frames. */
HIDDEN int _Unwind_Backtrace(void *each, void *with);
HIDDEN int _Unwind_Backtrace(void *each, void *with)
{
	(void)each;
	(void)with;
	return 0;
}
