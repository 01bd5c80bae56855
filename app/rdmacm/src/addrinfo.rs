//! `rdma_getaddrinfo`: the C library's names and services, as addresses of connections.

use core::ffi::{c_char, c_int};
use core::ptr::{null, null_mut};

use libc::{AI_NUMERICHOST, AI_PASSIVE, addrinfo, sockaddr, socklen_t};
use omniverb_abi::*;
use omniverb_terms::Errno;

use crate::device;
use crate::errno::set_errno;

/// What went wrong: an errno, or a number of the C library's `getaddrinfo`.
pub(crate) enum AddrinfoError {
    Errno(Errno),
    Name(c_int),
}

/// A list that was found, with one owner.
pub(crate) struct AddrinfoList(*mut rdma_addrinfo);

// SAFETY: it has no other owner.
unsafe impl Send for AddrinfoList {}

impl AddrinfoList {
    /// The program's from now on, which frees it.
    pub(crate) fn into_c(self) -> *mut rdma_addrinfo {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for AddrinfoList {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        unsafe { ov_rdma_freeaddrinfo(self.0) };
    }
}

/// A copy in memory of the C library's.
///
/// # Safety
/// `from` has so many bytes.
unsafe fn copy(from: *const sockaddr, bytes: socklen_t) -> Result<*mut sockaddr, AddrinfoError> {
    // SAFETY: malloc has no preconditions; the caller's promise.
    unsafe {
        let to = libc::malloc(bytes as usize);
        if to.is_null() {
            return Err(AddrinfoError::Errno(Errno::ENOMEM));
        }
        core::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), bytes as usize);
        Ok(to.cast())
    }
}

/// The hints of the C library that say the same.
fn hints_of(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: pointers and numbers: zero is valid for all.
    let mut asked: addrinfo = unsafe { core::mem::zeroed() };
    for (ours, theirs) in [(RAI_PASSIVE, AI_PASSIVE), (RAI_NUMERICHOST, AI_NUMERICHOST)] {
        if hints.ai_flags & ours != 0 {
            asked.ai_flags |= theirs;
        }
    }
    asked.ai_family = hints.ai_family;
    asked.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    asked.ai_protocol = match (hints.ai_port_space.cast_unsigned(), asked.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_IPOIB | RDMA_PS_UDP, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    asked
}

/// Asks the C library, and takes its first answer.
///
/// # Safety
/// The names are terminated or null.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    out: &mut rdma_addrinfo,
) -> Result<(), AddrinfoError> {
    let asked = hints.map(hints_of);
    let asked = asked.as_ref().map_or(null(), core::ptr::from_ref);
    let mut answers = null_mut();
    // SAFETY: the caller's promise.
    match unsafe { libc::getaddrinfo(node, service, asked, &mut answers) } {
        0 => {}
        number => return Err(AddrinfoError::Name(number)),
    }
    // SAFETY: there is one at least, for as long as the list is not freed.
    let taken = unsafe { take(&*answers, hints, out) };
    // SAFETY: from above.
    unsafe { libc::freeaddrinfo(answers) };
    taken
}

/// # Safety
/// `answer` is one of the C library's.
unsafe fn take(
    answer: &addrinfo,
    hints: Option<&rdma_addrinfo>,
    out: &mut rdma_addrinfo,
) -> Result<(), AddrinfoError> {
    let said = |number: Option<c_int>| number.filter(|number| *number != 0);
    let by_kind = match answer.ai_socktype {
        libc::SOCK_STREAM => IBV_QPT_RC,
        libc::SOCK_DGRAM => IBV_QPT_UD,
        _ => 0,
    };
    let by_protocol = match answer.ai_protocol {
        libc::IPPROTO_TCP => RDMA_PS_TCP,
        libc::IPPROTO_UDP => RDMA_PS_UDP,
        _ => 0,
    };
    out.ai_qp_type = said(hints.map(|h| h.ai_qp_type)).unwrap_or(by_kind.cast_signed());
    out.ai_port_space = said(hints.map(|h| h.ai_port_space)).unwrap_or(by_protocol.cast_signed());
    out.ai_family = answer.ai_family;
    // SAFETY: the caller's promise.
    unsafe {
        let address = copy(answer.ai_addr, answer.ai_addrlen)?;
        let name = match answer.ai_canonname {
            name if name.is_null() => name,
            name => libc::strdup(name),
        };
        if answer.ai_flags & AI_PASSIVE != 0 {
            out.ai_flags = RAI_PASSIVE;
            (out.ai_src_addr, out.ai_src_len) = (address, answer.ai_addrlen);
            out.ai_src_canonname = name;
        } else {
            (out.ai_dst_addr, out.ai_dst_len) = (address, answer.ai_addrlen);
            out.ai_dst_canonname = name;
        }
    }
    Ok(())
}

/// # Safety
/// As [`ov_rdma_getaddrinfo`].
unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    out: &mut rdma_addrinfo,
) -> Result<(), AddrinfoError> {
    // SAFETY: the caller's promise.
    unsafe {
        if !node.is_null() || !service.is_null() {
            look_up(node, service, hints, out)?;
        } else if let Some(hints) = hints {
            out.ai_flags = hints.ai_flags;
            out.ai_family = hints.ai_family;
            out.ai_qp_type = hints.ai_qp_type;
            out.ai_port_space = hints.ai_port_space;
            if hints.ai_dst_len != 0 {
                out.ai_dst_addr = copy(hints.ai_dst_addr, hints.ai_dst_len)?;
                out.ai_dst_len = hints.ai_dst_len;
            }
        }
        if let Some(hints) = hints
            && out.ai_src_len == 0
            && hints.ai_src_len != 0
        {
            out.ai_src_addr = copy(hints.ai_src_addr, hints.ai_src_len)?;
            out.ai_src_len = hints.ai_src_len;
        }
    }
    Ok(())
}

/// Finds the address of a name and a service.
///
/// # Safety
/// The names are terminated or null, `hints` null or valid.
pub(crate) unsafe fn found(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<AddrinfoList, AddrinfoError> {
    // SAFETY: the caller's promise.
    let hints = unsafe { hints.as_ref() };
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(AddrinfoError::Errno(Errno::EINVAL));
    }
    device::check_present().map_err(AddrinfoError::Errno)?;
    // There is no subnet administrator to ask.
    if hints.is_some_and(|hints| hints.ai_flags & RAI_SA != 0) {
        return Err(AddrinfoError::Errno(Errno::EOPNOTSUPP));
    }
    // SAFETY: calloc has no preconditions; zero is valid for pointers and numbers.
    let out: *mut rdma_addrinfo = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast();
    if out.is_null() {
        return Err(AddrinfoError::Errno(Errno::ENOMEM));
    }
    let made = AddrinfoList(out);
    // SAFETY: the caller's promise; just made.
    unsafe { find(node, service, hints, &mut *out)? };
    Ok(made)
}

/// Finds the address of a name and a service: what `rdma_create_ep` takes. Returns 0, -1 with
/// `errno`, or what the C library's `getaddrinfo` says.
///
/// # Safety
/// The names are terminated or null, `hints` null or valid, `out` valid for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    out: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { found(node, service, hints) } {
        Ok(list) => {
            // SAFETY: as above.
            unsafe { out.write(list.into_c()) };
            0
        }
        Err(AddrinfoError::Errno(errno)) => {
            set_errno(errno);
            -1
        }
        Err(AddrinfoError::Name(number)) => number,
    }
}

/// Frees what was found.
///
/// # Safety
/// `found` came from [`ov_rdma_getaddrinfo`], or is null; what the program put into it came from
/// `malloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_freeaddrinfo(found: *mut rdma_addrinfo) {
    let mut next = found;
    while !next.is_null() {
        // SAFETY: the caller's promise.
        unsafe {
            let one = next;
            next = (*one).ai_next;
            for part in [(*one).ai_connect, (*one).ai_route] {
                libc::free(part);
            }
            for name in [(*one).ai_src_canonname, (*one).ai_dst_canonname] {
                libc::free(name.cast());
            }
            for address in [(*one).ai_src_addr, (*one).ai_dst_addr] {
                libc::free(address.cast());
            }
            libc::free(one.cast());
        }
    }
}
