//! Defines `functions!`, which makes the functions that replace the C library's.

use crate::call_effects::Call;

/// Does a call, and what it means for descriptors before and after it.
#[inline(always)]
pub(crate) fn watched<R: Copy + Into<i64>>(call: Call, make: impl FnOnce() -> R) -> R {
    let was = call.before();
    let result = make();
    call.after(was, result.into() as isize);
    result
}

/// Functions of C: the safety of each is that of the function of this name.
macro_rules! functions {
    ($(
        $name:ident($($argument:ident: $kind:ty),*) -> $out:ty $body:block
    )*) => {
        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// As of that function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> $out $body
        )*
    };
}
