//! Addresses: bound, listened at, and resolved.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::sockaddr;
use omniverb_abi::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED, ibv_gid,
    rdma_cm_id,
};
use omniverb_session::Message;
use omniverb_session::cm::{BindCmId, CmAddress, CmIdBound, CmIdResolved, ListenCmId, ResolveCmId};
use omniverb_terms::{Errno, Gid};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::errno::outcome;
use crate::event_queue::EventSource;
use crate::id_state::{IdShell, ResolutionState, attach};
use crate::refusal_log::{AttemptedStep, LoggedCall};
use crate::route::{PathRecord, set_path};
use crate::{c_sockaddr, daemon_calls, device, event, id_registry};

/// What the daemon said of an identifier's own address becomes visible. A loopback address is no
/// device's, as little as a wildcard: so it is with rdma_cm(7), and libfabric, which binds to
/// `localhost` to ask, takes the addresses of the interfaces only where it hears so. Where there
/// are no others it is the device's, which has nothing else.
///
/// # Safety
/// `id` is live.
unsafe fn bound(id: *mut rdma_cm_id, answer: Message) -> Result<(), Errno> {
    let Message::CmIdBound(CmIdBound { address, gid, .. }) = answer else {
        return Err(Errno::EPROTO);
    };
    // SAFETY: the caller's promise.
    unsafe {
        (*id).route.addr.src_storage = c_sockaddr::to_c(&address);
        let loopback = c_sockaddr::ip(&address).is_loopback();
        if gid != Gid::ZERO && (!loopback || device::has_loopback_only()?) {
            attach(id)?;
            (*id).route.addr.ibaddr.sgid = ibv_gid { raw: gid.bytes() };
        }
        IdShell::of(id).state().is_bound = true;
    }
    Ok(())
}

/// Gives an identifier an address.
///
/// # Safety
/// `id` is live, `address` as long as its family says.
pub(crate) unsafe fn bind(id: *mut rdma_cm_id, address: *const sockaddr) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = IdShell::of(id);
        let address = c_sockaddr::from_c(address)?;
        let flags = shell.state().options.flags;
        bound(id, daemon_calls::ask(&BindCmId { id: shell.handle()?, flags, address }.into())?)
    }
}

/// Gives an identifier an address and a port; with an address that is neither a wildcard nor a
/// loopback address it has a device from then on.
///
/// # Safety
/// `id` is live, `address` null or as long as its family says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_bind_addr(id: *mut rdma_cm_id, address: *const sockaddr) -> c_int {
    static CALL: LoggedCall = LoggedCall::new("rdma_bind_addr", AttemptedStep::Bind);
    // SAFETY: the caller's promise.
    outcome(CALL.explain(unsafe { bind(id, address) }))
}

/// Waits for connections.
///
/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    static CALL: LoggedCall = LoggedCall::new("rdma_listen", AttemptedStep::Listen);
    let backlog = u32::try_from(backlog).unwrap_or(0);
    // SAFETY: the caller's promise.
    let listening = unsafe {
        let shell = IdShell::of(id);
        let answer =
            shell.handle().and_then(|id| daemon_calls::ask(&ListenCmId { id, backlog }.into()));
        answer.and_then(|answer| {
            id_registry::mark_listening(shell.token);
            bound(id, answer)
        })
    };
    outcome(CALL.explain(listening))
}

/// The address that packets to `remote` leave from: what the kernel would connect a socket with.
fn source_for(remote: &CmAddress) -> Result<CmAddress, Errno> {
    let (family, any) = match c_sockaddr::ip(remote) {
        IpAddr::V4(_) => (AddressFamily::INET, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        IpAddr::V6(_) => (AddressFamily::INET6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    // The port is no matter, but for zero, which some kernels refuse.
    let to = match c_sockaddr::ip(remote) {
        IpAddr::V4(four) => SocketAddr::from((four, remote.port.max(1))),
        IpAddr::V6(six) => SocketAddrV6::new(six, remote.port.max(1), 0, remote.interface).into(),
    };
    let failed = |error: rustix::io::Errno| Errno(error.raw_os_error().unsigned_abs());
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(failed)?;
    rustix::net::connect(&socket, &to).map_err(failed)?;
    let from = rustix::net::getsockname(&socket).map_err(failed)?;
    let from = SocketAddr::try_from(from).map_err(failed)?;
    let interface = match from {
        SocketAddr::V6(six) => six.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    if from.ip() == any {
        return Err(Errno::ENODEV);
    }
    Ok(CmAddress { family: remote.family, port: 0, interface, ip: Gid::from(from.ip()) })
}

/// Where the connection is to come from: as the caller says, as the identifier is bound, or as the
/// routes say.
///
/// # Safety
/// `id` is live, `source` null or as long as its family says.
unsafe fn local(
    id: *mut rdma_cm_id,
    source: *const sockaddr,
    remote: &CmAddress,
) -> Result<CmAddress, Errno> {
    // SAFETY: the caller's promise.
    let has = unsafe {
        if IdShell::of(id).state().is_bound {
            c_sockaddr::from_c((&raw const (*id).route.addr.src_storage).cast())?
        } else if source.is_null() {
            CmAddress::NONE
        } else {
            c_sockaddr::from_c(source)?
        }
    };
    if has.family != 0 && !c_sockaddr::ip(&has).is_unspecified() {
        return Ok(has);
    }
    Ok(CmAddress { port: has.port, ..source_for(remote)? })
}

/// Resolves addresses; `ADDR_RESOLVED` follows.
///
/// # Safety
/// `id` is live, the addresses are as long as their families say, `source` may be null.
pub(crate) unsafe fn resolve_address(
    id: *mut rdma_cm_id,
    source: *const sockaddr,
    destination: *const sockaddr,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = IdShell::of(id);
        let remote = c_sockaddr::from_c(destination)?;
        let local = local(id, source, &remote)?;
        let flags = shell.state().options.flags;
        let question = ResolveCmId { id: shell.handle()?, flags, local, remote };
        let what = match daemon_calls::ask(&question.into()) {
            Ok(Message::CmIdResolved(resolved)) => {
                attach(id)?;
                show(id, &resolved);
                let mut state = shell.state();
                state.is_bound = true;
                state.resolved = ResolutionState::Address(resolved);
                EventSource::Own { event: RDMA_CM_EVENT_ADDR_RESOLVED, status: 0 }
            }
            Ok(_) => return Err(Errno::EPROTO),
            // There is a way, but not by this device.
            Err(Errno::ENODEV) => {
                let status = -Errno::ENODEV.raw();
                EventSource::Own { event: RDMA_CM_EVENT_ADDR_ERROR, status }
            }
            Err(errno) => return Err(errno),
        };
        id_registry::push(shell.token, what);
        event::complete(id)
    }
}

/// # Safety
/// `id` is live.
unsafe fn show(id: *mut rdma_cm_id, resolved: &CmIdResolved) {
    // SAFETY: the caller's promise.
    let route = unsafe { &mut (*id).route };
    route.addr.src_storage = c_sockaddr::to_c(&resolved.local);
    route.addr.dst_storage = c_sockaddr::to_c(&resolved.remote);
    route.addr.ibaddr.sgid = ibv_gid { raw: resolved.sgid.bytes() };
    route.addr.ibaddr.dgid = ibv_gid { raw: resolved.dgid.bytes() };
    route.addr.ibaddr.pkey = resolved.partition_key.to_be();
}

/// Resolves addresses: from then on the identifier has a device.
///
/// # Safety
/// `id` is live, the addresses are as long as their families say, `source` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *const sockaddr,
    destination: *const sockaddr,
    _timeout: c_int,
) -> c_int {
    static CALL: LoggedCall = LoggedCall::new("rdma_resolve_addr", AttemptedStep::Resolve);
    // SAFETY: the caller's promise.
    outcome(CALL.explain(unsafe { resolve_address(id, source, destination) }))
}

/// Resolves the route; `ROUTE_RESOLVED` follows.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn resolve_route(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = IdShell::of(id);
        let (resolved, tos) = {
            let state = shell.state();
            let ResolutionState::Address(resolved) = state.resolved else {
                return Err(Errno::EINVAL);
            };
            (resolved, state.options.tos)
        };
        let path = PathRecord {
            sgid: resolved.sgid,
            dgid: resolved.dgid,
            mtu: resolved.path_mtu,
            flow_label: resolved.flow_label,
            hop_limit: resolved.hop_limit,
            traffic_class: if tos == 0 { resolved.traffic_class } else { tos },
        };
        set_path(id, &path)?;
        shell.state().resolved = ResolutionState::Route;
        let what = EventSource::Own { event: RDMA_CM_EVENT_ROUTE_RESOLVED, status: 0 };
        id_registry::push(shell.token, what);
        event::complete(id)
    }
}

/// Resolves the route to a resolved address. On RoCE no subnet administrator is asked.
///
/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_resolve_route(id: *mut rdma_cm_id, _timeout: c_int) -> c_int {
    static CALL: LoggedCall = LoggedCall::new("rdma_resolve_route", AttemptedStep::Resolve);
    // SAFETY: the caller's promise.
    outcome(CALL.explain(unsafe { resolve_route(id) }))
}
