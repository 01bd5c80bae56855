//! Socket options: those that mean something here are heeded, those that every program sets are
//! remembered.

use core::ffi::{c_int, c_void};

use libc::{
    IP_TOS, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPV6_V6ONLY, SO_ERROR, SO_KEEPALIVE, SO_LINGER,
    SO_OOBINLINE, SO_RCVBUF, SO_REUSEADDR, SO_SNDBUF, SOL_SOCKET, TCP_CONGESTION, TCP_INFO,
    TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_MAXSEG, TCP_NODELAY, linger, socklen_t,
};
use omniverb_abi::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS,
    ibv_path_data,
};
use omniverb_terms::Errno;

use super::buffer_settings::RDMA_ROUTE;
use super::stream_connection::ConnectionState;
use super::stream_socket::{Inner, Phase};
use crate::route::path_data;
use crate::set_option::ov_rdma_set_option;

/// The level of options that only these sockets have.
pub(crate) const SOL_RDMA: c_int = 0x10000;
/// States of TCP, in what `TCP_INFO` says.
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE: u8 = 7;
/// Bytes of a datagram's payload, as programs are told that ask for TCP's.
const SEGMENT: c_int = 2048;

/// A number that the program gives.
///
/// # Safety
/// `value` has `length` bytes.
pub(crate) unsafe fn number(value: *const c_void, length: socklen_t) -> Result<c_int, Errno> {
    if value.is_null() || (length as usize) < size_of::<c_int>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { value.cast::<c_int>().read_unaligned() })
}

/// Gives the program a value, as much of it as it has room for. With a length of 0 there need be no
/// place for it.
///
/// # Errors
/// `EFAULT`: no place for bytes that the length promises, or no length.
///
/// # Safety
/// `to` has room for `length` bytes.
pub(crate) unsafe fn give<T>(
    value: T,
    to: *mut c_void,
    length: *mut socklen_t,
) -> Result<(), Errno> {
    if length.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = size_of::<T>().min(*length as usize);
        if bytes > 0 {
            if to.is_null() {
                return Err(Errno::EFAULT);
            }
            core::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to.cast(), bytes);
        }
        length.write(bytes as socklen_t);
    }
    Ok(())
}

impl Inner {
    /// Sets an option of the identifier.
    fn set_below(&self, name: c_int, value: *const c_void, length: usize) -> Result<(), Errno> {
        // SAFETY: live; so many bytes.
        match unsafe { ov_rdma_set_option(self.id.0, RDMA_OPTION_ID, name, value, length) } {
            0 => Ok(()),
            _ => Err(crate::errno::last()),
        }
    }

    fn set_flag_below(&self, name: c_int, on: bool) -> Result<(), Errno> {
        let value = c_int::from(on);
        self.set_below(name, (&raw const value).cast(), size_of::<c_int>())
    }

    /// Sets an option.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: there is no such option. `EINVAL`.
    ///
    /// # Safety
    /// `value` has `length` bytes.
    pub(crate) unsafe fn set(
        &mut self,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: socklen_t,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        let number = unsafe { number(value, length) }?;
        let (on, bytes) = (number != 0, u32::try_from(number).map(|n| n.saturating_mul(2)));
        match (level, name) {
            (SOL_SOCKET, SO_REUSEADDR) => {
                // Too late, it is of no use, and of no harm.
                let _ = self.set_flag_below(RDMA_OPTION_ID_REUSEADDR, on);
                self.options.reuse = on;
            }
            (SOL_SOCKET, SO_RCVBUF) => {
                self.settings.receive_bytes = bytes.map_err(|_| Errno::EINVAL)?;
            }
            (SOL_SOCKET, SO_SNDBUF) => {
                self.settings.send_bytes = bytes.map_err(|_| Errno::EINVAL)?;
            }
            (SOL_SOCKET, SO_LINGER) => self.options.lingers = on,
            (SOL_SOCKET, SO_KEEPALIVE) => self.options.keep_alive = on,
            (SOL_SOCKET, SO_OOBINLINE) => self.options.out_of_band = on,
            (IPPROTO_IP, IP_TOS) => {
                let tos = u8::try_from(number).map_err(|_| Errno::EINVAL)?;
                self.set_below(RDMA_OPTION_ID_TOS, (&raw const tos).cast(), 1)?;
                self.options.tos = number;
            }
            (IPPROTO_TCP, TCP_KEEPCNT | TCP_KEEPINTVL | TCP_MAXSEG | TCP_CONGESTION) => {}
            (IPPROTO_TCP, TCP_KEEPIDLE) if number <= 0 => return Err(Errno::EINVAL),
            (IPPROTO_TCP, TCP_KEEPIDLE) => self.options.keep_idle = number,
            (IPPROTO_TCP, TCP_NODELAY) => self.options.no_delay = on,
            (IPPROTO_IPV6, IPV6_V6ONLY) => {
                self.set_flag_below(RDMA_OPTION_ID_AFONLY, on)?;
                self.options.only_six = on;
            }
            (SOL_RDMA, _) => return self.set_size(name, number),
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok(())
    }

    /// Gives the program the path to the peer, or none while there is none.
    ///
    /// # Errors
    /// `EINVAL`: there is no room for one.
    ///
    /// # Safety
    /// As [`Self::get`].
    unsafe fn give_paths(&self, to: *mut c_void, length: *mut socklen_t) -> Result<(), Errno> {
        if to.is_null() || length.is_null() {
            return Err(Errno::EFAULT);
        }
        // SAFETY: the caller's promise; the identifier is live.
        unsafe {
            if (*length as usize) < size_of::<ibv_path_data>() {
                return Err(Errno::EINVAL);
            }
            match path_data(self.id.0) {
                Some(path) => give(path, to, length),
                None => give([0_u8; 0], to, length),
            }
        }
    }

    fn set_size(&mut self, name: c_int, number: c_int) -> Result<(), Errno> {
        if !matches!(self.phase, Phase::New | Phase::Listening) {
            return Err(Errno::EINVAL);
        }
        self.settings.set(name, number)
    }

    /// What an option is.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: there is no such option.
    ///
    /// # Safety
    /// `to` has room for as many bytes as `length` says.
    pub(crate) unsafe fn get(
        &mut self,
        level: c_int,
        name: c_int,
        to: *mut c_void,
        length: *mut socklen_t,
    ) -> Result<(), Errno> {
        let (options, settings) = (self.options, self.settings);
        let size = |bytes: u32| c_int::try_from(bytes).unwrap_or(c_int::MAX);
        let number = match (level, name) {
            (SOL_SOCKET, SO_REUSEADDR) => c_int::from(options.reuse),
            (SOL_SOCKET, SO_KEEPALIVE) => c_int::from(options.keep_alive),
            (SOL_SOCKET, SO_OOBINLINE) => c_int::from(options.out_of_band),
            (SOL_SOCKET, SO_RCVBUF) => size(settings.receive_bytes),
            (SOL_SOCKET, SO_SNDBUF) => size(settings.send_bytes),
            (SOL_SOCKET, SO_LINGER) => {
                let said = linger { l_onoff: c_int::from(options.lingers), l_linger: 0 };
                // SAFETY: the caller's promise.
                return unsafe { give(said, to, length) };
            }
            (SOL_SOCKET, SO_ERROR) => core::mem::take(&mut self.error),
            (IPPROTO_IP, IP_TOS) => options.tos,
            (IPPROTO_TCP, TCP_CONGESTION | TCP_KEEPCNT | TCP_KEEPINTVL) => 1,
            (IPPROTO_TCP, TCP_KEEPIDLE) => options.keep_idle,
            (IPPROTO_TCP, TCP_NODELAY) => c_int::from(options.no_delay),
            (IPPROTO_TCP, TCP_MAXSEG) => SEGMENT,
            (IPPROTO_TCP, TCP_INFO) => {
                let is_up =
                    matches!(&self.phase, Phase::Made(s) if s.link() == ConnectionState::Up);
                // The state is the first byte; the rest is unknown.
                let mut said = [0_u8; 104];
                said[0] = if is_up { TCP_ESTABLISHED } else { TCP_CLOSE };
                // SAFETY: the caller's promise.
                return unsafe { give(said, to, length) };
            }
            (IPPROTO_IPV6, IPV6_V6ONLY) => c_int::from(options.only_six),
            // SAFETY: the caller's promise.
            (SOL_RDMA, RDMA_ROUTE) => return unsafe { self.give_paths(to, length) },
            (SOL_RDMA, _) => settings.get(name)?,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        // SAFETY: the caller's promise.
        unsafe { give(number, to, length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_without_room_is_told_and_a_caller_without_a_length_is_refused() {
        let mut length: socklen_t = 0;
        // librspreload asks so, to learn which family a socket has.
        // SAFETY: there is room for no byte, and the length says so.
        let asked = unsafe { give(7_u64, core::ptr::null_mut(), &raw mut length) };
        assert_eq!((asked, length), (Ok(()), 0));
        length = 4;
        // SAFETY: nothing is written where there is no room.
        let refused = unsafe { give(7_u64, core::ptr::null_mut(), &raw mut length) };
        assert_eq!(refused, Err(Errno::EFAULT));
        let mut room = 0_u32;
        // SAFETY: what has no length is refused before anything is written.
        let refused = unsafe { give(7_u64, (&raw mut room).cast(), core::ptr::null_mut()) };
        assert_eq!((refused, room), (Err(Errno::EFAULT), 0));
    }
}
