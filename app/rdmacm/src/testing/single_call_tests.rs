//! Tests what single calls answer, and what they wait for.

use core::ptr::{null, null_mut};
use std::sync::mpsc;
use std::time::Duration;

use omniverb_abi::*;

use super::c_call_helpers::*;
use crate::ack_cm_event::*;
use crate::address_calls::*;
use crate::addrinfo::*;
use crate::cm_id::*;
use crate::ece::*;
use crate::event::*;
use crate::event_channel::ov_rdma_destroy_event_channel;
use crate::multicast::*;
use crate::resolve_addrinfo::*;
use crate::set_option::*;

#[test]
fn an_empty_channel_says_so_if_the_program_does_not_wait() {
    let _alone = alone();
    let events = channel();
    let mut event = null_mut();
    // SAFETY: live.
    unsafe {
        let flags = libc::fcntl((*events).fd, libc::F_GETFL);
        assert_eq!(flags & libc::O_NONBLOCK, 0);
        libc::fcntl((*events).fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        assert_eq!(said(ov_rdma_get_cm_event(events, &mut event)), Err(libc::EAGAIN));
        assert_eq!(said(ov_rdma_get_cm_event(events, null_mut())), Err(libc::EINVAL));
        assert_eq!(said(ov_rdma_ack_cm_event(null_mut())), Err(libc::EINVAL));
        let id = new_id(events, RDMA_PS_TCP);
        said(ov_rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 5, 6)).unwrap();
        assert!(is_readable(events));
        let event = taken(events);
        assert_eq!(((*event).event, (*event).status, (*event).param.arg), (18, 5, 6));
        said(ov_rdma_ack_cm_event(event)).unwrap();
        assert!(!is_readable(events));
        said(ov_rdma_destroy_id(id)).unwrap();
        ov_rdma_destroy_event_channel(events);
    }
}

#[test]
fn destroying_waits_until_events_are_acknowledged() {
    let _alone = alone();
    let events = channel();
    let id = new_id(events, RDMA_PS_TCP);
    // SAFETY: live.
    let event = unsafe {
        for argument in 0..2 {
            said(ov_rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, argument)).unwrap();
        }
        taken(events)
    };
    let (over, is_over) = mpsc::channel();
    let doomed = id.expose_provenance();
    let thread = std::thread::spawn(move || {
        // SAFETY: live, for the last time.
        let result = unsafe { ov_rdma_destroy_id(core::ptr::with_exposed_provenance_mut(doomed)) };
        over.send(result).unwrap();
    });
    assert!(is_over.recv_timeout(Duration::from_millis(50)).is_err());
    // SAFETY: not acknowledged yet.
    said(unsafe { ov_rdma_ack_cm_event(event) }).unwrap();
    assert_eq!(is_over.recv_timeout(Duration::from_secs(60)), Ok(0));
    thread.join().unwrap();
    assert!(!is_readable(events), "the event that nobody took is gone");
    // SAFETY: live.
    unsafe { ov_rdma_destroy_event_channel(events) };
}

#[test]
fn events_go_where_their_identifier_went() {
    let _alone = alone();
    let (old, new) = (channel(), channel());
    let (moves, stays) = (new_id(old, RDMA_PS_TCP), new_id(old, RDMA_PS_TCP));
    // SAFETY: live.
    unsafe {
        for id in [moves, stays] {
            said(ov_rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, 0)).unwrap();
        }
        said(ov_rdma_migrate_id(moves, new)).unwrap();
        assert_eq!((next(old).id, next(new).id), (stays, moves));
        assert!(!is_readable(old) && !is_readable(new) && (*moves).channel == new);
        said(ov_rdma_migrate_id(moves, null_mut())).unwrap();
        assert_eq!(said(ov_rdma_migrate_id(moves, null_mut())), Err(libc::EINVAL));
        let address = here(5);
        said(ov_rdma_resolve_addr(moves, null(), (&raw const address).cast(), 1)).unwrap();
        assert_eq!((*(*moves).event).event, RDMA_CM_EVENT_ADDR_RESOLVED);
        for id in [moves, stays] {
            said(ov_rdma_destroy_id(id)).unwrap();
        }
        ov_rdma_destroy_event_channel(old);
        ov_rdma_destroy_event_channel(new);
    }
}

#[test]
fn addresses_that_are_none_are_refused() {
    let _alone = alone();
    let events = channel();
    let id = new_id(events, RDMA_PS_TCP);
    // SAFETY: live.
    unsafe {
        let strange: libc::sockaddr_storage = core::mem::zeroed();
        assert_eq!(said(ov_rdma_bind_addr(id, (&raw const strange).cast())), Err(libc::EINVAL));
        assert_eq!(said(ov_rdma_bind_addr(id, null())), Err(libc::EINVAL));
        let taken = here(1);
        assert_eq!(said(ov_rdma_bind_addr(id, (&raw const taken).cast())), Err(libc::EADDRINUSE));
        assert_eq!(said(ov_rdma_resolve_route(id, 1)), Err(libc::EINVAL));
        assert_eq!(said(crate::connection_calls::ov_rdma_connect(id, null())), Err(libc::EINVAL));
        // A way that is not this device's comes as an event.
        let elsewhere = here(2);
        said(ov_rdma_resolve_addr(id, null(), (&raw const elsewhere).cast(), 1)).unwrap();
        let seen = next(events);
        assert_eq!((seen.kind, seen.status), (RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV));
        said(ov_rdma_destroy_id(id)).unwrap();
        ov_rdma_destroy_event_channel(events);
    }
}

#[test]
fn options_have_their_lengths_and_times() {
    let _alone = alone();
    let events = channel();
    let id = new_id(events, RDMA_PS_TCP);
    let set = |level, name, value: &[u8]| {
        // SAFETY: live.
        said(unsafe { ov_rdma_set_option(id, level, name, value.as_ptr().cast(), value.len()) })
    };
    let id_option = |name, value: &[u8]| set(RDMA_OPTION_ID, name, value);
    assert_eq!(id_option(RDMA_OPTION_ID_TOS, &[8]), Ok(()));
    assert_eq!(id_option(RDMA_OPTION_ID_TOS, &[8, 0, 0, 0]), Err(libc::EINVAL));
    assert_eq!(id_option(RDMA_OPTION_ID_ACK_TIMEOUT, &[31]), Ok(()));
    assert_eq!(id_option(RDMA_OPTION_ID_ACK_TIMEOUT, &[32]), Err(libc::EINVAL));
    assert_eq!(id_option(RDMA_OPTION_ID_REUSEADDR, &[1, 0, 0, 0]), Ok(()));
    assert_eq!(id_option(99, &[1, 0, 0, 0]), Err(libc::ENOSYS));
    assert_eq!(set(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &[0; 80]), Err(libc::ENOSYS));
    let address = at([0; 4], 9);
    // SAFETY: live.
    unsafe {
        said(ov_rdma_bind_addr(id, (&raw const address).cast())).unwrap();
        assert_eq!(id_option(RDMA_OPTION_ID_REUSEADDR, &[1, 0, 0, 0]), Ok(()), "it is so");
        for option in [RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_AFONLY] {
            let other = u8::from(option == RDMA_OPTION_ID_AFONLY);
            assert_eq!(id_option(option, &[other, 0, 0, 0]), Err(libc::EINVAL));
        }
        let mut ece = ibv_ece { vendor_id: 7, options: 1, comp_mask: 0 };
        said(ov_rdma_set_local_ece(id, &ece)).unwrap();
        said(ov_rdma_get_remote_ece(id, &mut ece)).unwrap();
        assert_eq!(ece.vendor_id, 0);
        said(ov_rdma_destroy_id(id)).unwrap();
        ov_rdma_destroy_event_channel(events);
    }
}

#[test]
fn a_group_is_joined_and_left() {
    let _alone = alone();
    let events = channel();
    let id = new_id(events, RDMA_PS_UDP);
    let (address, group) = (here(7), at([239, 1, 2, 3], 0));
    let mut context = 5;
    // SAFETY: live.
    unsafe {
        let group_at: *const libc::sockaddr = (&raw const group).cast();
        let context: *mut libc::c_void = (&raw mut context).cast();
        assert_eq!(said(ov_rdma_join_multicast(id, group_at, context)), Err(libc::EINVAL));
        said(ov_rdma_resolve_addr(id, null(), (&raw const address).cast(), 1)).unwrap();
        assert_eq!(next(events).kind, RDMA_CM_EVENT_ADDR_RESOLVED);
        // The daemon's test address is not in the table of GIDs for this one.
        said(ov_rdma_join_multicast(id, group_at, context)).unwrap();
        let event = taken(events);
        assert_eq!((*event).event, RDMA_CM_EVENT_MULTICAST_JOIN);
        let ud = (*event).param.ud;
        assert_eq!((ud.private_data, ud.qkey), (context.cast_const(), RDMA_UDP_QKEY));
        assert_eq!(ud.ah_attr.grh.dgid.raw[10..], [0xff, 0xff, 239, 1, 2, 3]);
        said(ov_rdma_ack_cm_event(event)).unwrap();
        said(ov_rdma_leave_multicast(id, group_at)).unwrap();
        // What was left before it was heard of is not heard of.
        said(ov_rdma_join_multicast(id, group_at, null_mut())).unwrap();
        said(ov_rdma_leave_multicast(id, group_at)).unwrap();
        said(ov_rdma_join_multicast(id, group_at, context)).unwrap();
        let event = taken(events);
        assert_eq!((*event).event, RDMA_CM_EVENT_MULTICAST_JOIN);
        assert_eq!((*event).param.ud.private_data, context.cast_const());
        said(ov_rdma_ack_cm_event(event)).unwrap();
        said(ov_rdma_leave_multicast(id, group_at)).unwrap();
        said(ov_rdma_resolve_route(id, 1)).unwrap();
        assert_eq!(next(events).kind, RDMA_CM_EVENT_ROUTE_RESOLVED);
        assert_eq!(said(ov_rdma_leave_multicast(id, group_at)), Err(libc::EADDRNOTAVAIL));
        said(ov_rdma_destroy_id(id)).unwrap();
        ov_rdma_destroy_event_channel(events);
    }
}

#[test]
fn getaddrinfo_resolves_names() {
    let _alone = alone();
    let mut found = null_mut();
    // SAFETY: terminated names.
    unsafe {
        assert_eq!(
            said(ov_rdma_getaddrinfo(null(), null(), null(), &mut found)),
            Err(libc::EINVAL)
        );
        let mut hints: rdma_addrinfo = core::mem::zeroed();
        hints.ai_port_space = RDMA_PS_TCP.cast_signed();
        hints.ai_flags = RAI_PASSIVE;
        let (node, service) = (c"127.0.0.1".as_ptr(), c"7471".as_ptr());
        assert_eq!(ov_rdma_getaddrinfo(node, service, &hints, &mut found), 0);
        assert_eq!((*found).ai_flags, RAI_PASSIVE);
        assert_eq!((*found).ai_qp_type.cast_unsigned(), IBV_QPT_RC);
        assert_eq!(((*found).ai_src_len, (*found).ai_dst_len), (16, 0));
        ov_rdma_freeaddrinfo(found);
        hints.ai_flags = RAI_NUMERICHOST;
        assert_eq!(ov_rdma_getaddrinfo(node, service, &hints, &mut found), 0);
        assert_eq!(((*found).ai_src_len, (*found).ai_dst_len), (0, 16));
        ov_rdma_freeaddrinfo(found);
        let nobody = c"no.address".as_ptr();
        assert_eq!(ov_rdma_getaddrinfo(nobody, service, &hints, &mut found), libc::EAI_NONAME);
        hints.ai_flags = RAI_SA;
        assert_eq!(
            said(ov_rdma_getaddrinfo(null(), service, &hints, &mut found)),
            Err(libc::EOPNOTSUPP)
        );
    }
}

#[test]
fn names_are_looked_up_for_an_identifier() {
    let _alone = alone();
    let events = channel();
    let id = new_id(events, RDMA_PS_TCP);
    let (node, service) = (c"127.0.0.1".as_ptr(), c"7471".as_ptr());
    let mut found = null_mut();
    // SAFETY: live, and terminated names.
    unsafe {
        let refused = |answer| said(answer).unwrap_err();
        assert_eq!(refused(ov_rdma_query_addrinfo(null_mut(), &mut found)), libc::EINVAL);
        assert_eq!(refused(ov_rdma_query_addrinfo(id, null_mut())), libc::EINVAL);
        assert_eq!(refused(ov_rdma_query_addrinfo(id, &mut found)), libc::ENOENT);
        let ask = |node, service, hints| ov_rdma_resolve_addrinfo(id, node, service, hints);
        assert_eq!(
            refused(ov_rdma_resolve_addrinfo(null_mut(), node, service, null())),
            libc::EINVAL
        );
        assert_eq!(refused(ask(null(), null(), null())), libc::EINVAL);
        let mut hints: rdma_addrinfo = core::mem::zeroed();
        for (flags, node) in [(RAI_SA | RAI_DNS, null()), (RAI_SA, node), (RAI_SA, null())] {
            hints.ai_flags = flags;
            assert_eq!(refused(ask(node, service, &hints)), libc::EOPNOTSUPP);
        }
        hints.ai_flags = RAI_NUMERICHOST;
        assert_eq!(refused(ask(c"no.address".as_ptr(), service, &hints)), libc::ENODATA);
        assert!(!is_readable(events), "what failed has no event");
        hints.ai_flags = RAI_DNS;
        hints.ai_port_space = RDMA_PS_TCP.cast_signed();
        // Found, told, had; and then again.
        for _ in 0..2 {
            said(ask(node, service, &hints)).unwrap();
            assert_eq!(refused(ask(node, service, &hints)), libc::EBUSY);
            let seen = next(events);
            assert_eq!((seen.id, seen.kind, seen.status), (id, 16, 0));
            assert_eq!(refused(ask(node, service, &hints)), libc::EBUSY);
            said(ov_rdma_query_addrinfo(id, &mut found)).unwrap();
            assert_eq!(
                ((*found).ai_dst_len, (*found).ai_qp_type.cast_unsigned()),
                (16, IBV_QPT_RC)
            );
            ov_rdma_freeaddrinfo(found);
            assert_eq!(refused(ov_rdma_query_addrinfo(id, &mut found)), libc::ENOENT);
        }
        // What was not taken goes with the identifier; without a channel the call waits.
        said(ask(node, service, &hints)).unwrap();
        said(ov_rdma_destroy_id(id)).unwrap();
        let alone = new_id(null_mut(), RDMA_PS_TCP);
        said(ov_rdma_resolve_addrinfo(alone, node, service, &hints)).unwrap();
        assert_eq!((*(*alone).event).event, RDMA_CM_EVENT_ADDRINFO_RESOLVED);
        said(ov_rdma_destroy_id(alone)).unwrap();
        ov_rdma_destroy_event_channel(events);
    }
}

#[test]
fn events_have_the_names_that_tools_print() {
    let name = |event| {
        // SAFETY: static and terminated.
        unsafe { core::ffi::CStr::from_ptr(ov_rdma_event_str(event)) }.to_str().unwrap()
    };
    assert_eq!(name(RDMA_CM_EVENT_CONNECT_REQUEST), "RDMA_CM_EVENT_CONNECT_REQUEST");
    assert_eq!(name(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT");
    assert_eq!(name(77), "UNKNOWN EVENT");
}
