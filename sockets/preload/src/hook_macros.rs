//! Defines `functions!`, which makes the functions that replace the C library's.

use crate::call_effects::Call;

/// Does a call, and what it means for descriptors before and after it.
#[inline(always)]
pub(crate) fn watched<R: Copy + Into<i64>>(call: Call<'_>, make: impl FnOnce() -> R) -> R {
    let was = call.before();
    let result = make();
    call.after(was, result.into() as isize);
    result
}

/// Functions of C: the safety of each is that of the function of this name. What is in brackets
/// says which arguments belong together, and makes of them what the body knows.
macro_rules! functions {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident($($argument:ident: $kind:ty),*) -> $out:ty
        $([$($given:ident: $type:ty = ($($from:ident),+)),+])?
        $body:block
    )*) => {
        $(
            /// Stands before the C library's function of this name.
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// As of that function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> $out {
                $(
                    let frame = $crate::user_memory::CallFrame::begin();
                    $(
                        // SAFETY: the caller's arguments are what the function of this name takes.
                        let $given = unsafe { <$type>::given(frame.during(), $($from),+) };
                    )+
                )?
                $body
            }
        )*
    };
}
