//! Owns and lends objects of `libibverbs.so.1` and `librdmacm.so.1`.
//!
//! Functions that make an object give [`Made`], those that use one take [`Ref`]: so most of them
//! are safe to call, as `rdma_libraries.rs` declares them. An object ends with its [`Owned`].
#![allow(unsafe_code, reason = "objects of C")]

use core::ffi::c_int;
use core::marker::PhantomData;
use core::ptr::{NonNull, null_mut};
use omniverb_abi::rdma_conn_param;
use std::io;
use std::os::fd::BorrowedFd;

/// What a function of C has just made for its caller alone, or null.
#[repr(transparent)]
pub(crate) struct Made<T>(*mut T);

impl<T> Made<T> {
    /// A place for one.
    pub(crate) const NONE: Self = Self(null_mut());

    /// # Safety
    /// Nothing else owns it.
    pub(crate) unsafe fn new(object: *mut T) -> Self {
        Self(object)
    }
}

/// An object that is there as long as its owner is.
#[repr(transparent)]
pub(crate) struct Ref<'a, T>(NonNull<T>, PhantomData<&'a T>);

impl<T> Clone for Ref<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Ref<'_, T> {}

impl<'a, T> Ref<'a, T> {
    /// # Safety
    /// It is there for as long.
    pub(crate) unsafe fn new(object: NonNull<T>) -> Self {
        Self(object, PhantomData)
    }

    /// For functions that ask for more than an object that is there.
    pub(crate) fn as_ptr(self) -> *mut T {
        self.0.as_ptr()
    }
}

/// What a connection is asked for, or accepted with, and some bytes for the other end.
#[repr(transparent)]
pub(crate) struct Parameters<'a>(rdma_conn_param, PhantomData<&'a [u8]>);

impl<'a> Parameters<'a> {
    /// RNR and timeout retries; no READs.
    pub(crate) fn new<const N: usize>(bytes: &'a [u8; N]) -> Self {
        const { assert!(N <= u8::MAX as usize) };
        let parameters = rdma_conn_param {
            private_data: bytes.as_ptr().cast(),
            private_data_len: N as u8,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        };
        Self(parameters, PhantomData)
    }
}

/// How many bytes there are: none.
#[repr(u8)]
pub(crate) enum NoBytes {
    Zero = 0,
}

/// What a function ends, which says how that went or nothing.
pub(crate) enum End<T> {
    Answers(unsafe extern "C" fn(*mut T) -> c_int),
    Silent(unsafe extern "C" fn(*mut T)),
}

/// An object that a function ends.
pub(crate) trait Object: Sized {
    fn end() -> End<Self>;
}

/// An object that ends with this.
pub(crate) struct Owned<T: Object>(NonNull<T>);

// SAFETY: the calls of verbs.h and rdma_cma.h are for any thread.
unsafe impl<T: Object> Send for Owned<T> {}

impl<T: Object> Owned<T> {
    /// # Errors
    /// It was not made: what `errno` says.
    pub(crate) fn new(made: Made<T>) -> io::Result<Self> {
        NonNull::new(made.0).map(Self).ok_or_else(io::Error::last_os_error)
    }

    /// Lends it to a function of C.
    pub(crate) fn get(&self) -> Ref<'_, T> {
        Ref(self.0, PhantomData)
    }

    /// Reads what is in it. Functions of C write there when they are given it, by the thread that
    /// has this.
    pub(crate) fn look<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        // SAFETY: it is there, and no function is at it.
        read(unsafe { self.0.as_ref() })
    }

    /// A descriptor that it has.
    pub(crate) fn fd(&self, read: impl FnOnce(&T) -> c_int) -> BorrowedFd<'_> {
        // SAFETY: open as long as this.
        unsafe { BorrowedFd::borrow_raw(self.look(read)) }
    }
}

impl<T: Object> Drop for Owned<T> {
    fn drop(&mut self) {
        let object = self.0.as_ptr();
        // SAFETY: once, and nothing borrows it any more.
        unsafe {
            match T::end() {
                End::Answers(end) => _ = end(object),
                End::Silent(end) => end(object),
            }
        }
    }
}
