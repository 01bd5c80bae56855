//! Tests what programs see of connections, from both ends.

use core::ptr::{null, null_mut};
use core::sync::atomic::Ordering;

use omniverb_abi::*;

use super::c_call_helpers::*;
use super::{fake_daemon, fake_ibverbs};
use crate::ack_cm_event::ov_rdma_ack_cm_event;
use crate::address_calls::*;
use crate::cm_id::*;
use crate::connection_calls::*;
use crate::device::ov_rdma_get_devices;
use crate::endpoint::*;
use crate::id_registry;
use crate::id_state::IdShell;
use crate::qp_creation::*;

/// Listens at a port.
fn listen(channel: *mut rdma_event_channel, port: u16) -> *mut rdma_cm_id {
    let id = new_id(channel, RDMA_PS_TCP);
    let address = at([0; 4], port);
    // SAFETY: live.
    unsafe {
        said(ov_rdma_bind_addr(id, (&raw const address).cast())).unwrap();
        assert!((*id).verbs.is_null(), "a wildcard is no device's");
        said(ov_rdma_listen(id, 5)).unwrap();
        assert_eq!(u16::from_be(ov_rdma_get_src_port(id)), port);
    }
    id
}

#[test]
fn a_loopback_address_has_no_device_until_a_connect() {
    let _alone = alone();
    let channel = channel();
    let (own, other) = (here(100), at([10, 0, 0, 1], 101));
    let ids = [new_id(channel, RDMA_PS_TCP), new_id(channel, RDMA_PS_TCP)];
    // SAFETY: live.
    unsafe {
        said(ov_rdma_bind_addr(ids[0], (&raw const own).cast())).unwrap();
        assert!((*ids[0]).verbs.is_null());
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, ..ibv_qp_attr::default() };
        let mut mask = 0;
        let told = crate::qp_attributes::ov_rdma_init_qp_attr(ids[0], &mut attr, &mut mask);
        assert_eq!(said(told), Err(libc::EINVAL), "of which device?");
        said(ov_rdma_listen(ids[0], 5)).unwrap();
        assert!((*ids[0]).verbs.is_null());
        assert_eq!(u16::from_be(ov_rdma_get_src_port(ids[0])), 100);
        said(ov_rdma_bind_addr(ids[1], (&raw const other).cast())).unwrap();
        assert!(!(*ids[1]).verbs.is_null());
        said(crate::qp_attributes::ov_rdma_init_qp_attr(ids[1], &mut attr, &mut mask)).unwrap();
        destroy(&ids);
        // Where there is no other it is the device's.
        fake_ibverbs::INTERFACE.store(1, Ordering::Relaxed);
        let id = new_id(channel, RDMA_PS_TCP);
        let bound = said(ov_rdma_bind_addr(id, (&raw const own).cast()));
        fake_ibverbs::INTERFACE.store(2, Ordering::Relaxed);
        bound.unwrap();
        assert!(!(*id).verbs.is_null());
        destroy(&[id]);
        crate::event_channel::ov_rdma_destroy_event_channel(channel);
    }
}

/// Resolves our own address, with a channel of the program's; makes a queue pair.
fn resolve(channel: *mut rdma_event_channel, port: u16) -> *mut rdma_cm_id {
    let id = new_id(channel, RDMA_PS_TCP);
    let address = here(port);
    // SAFETY: live.
    unsafe {
        said(ov_rdma_resolve_addr(id, null(), (&raw const address).cast(), 2000)).unwrap();
        assert_eq!(next(channel).kind, RDMA_CM_EVENT_ADDR_RESOLVED);
        assert!(!(*id).verbs.is_null() && !(*id).pd.is_null());
        assert_eq!((*id).port_num, 1);
        said(ov_rdma_resolve_route(id, 2000)).unwrap();
        assert_eq!(next(channel).kind, RDMA_CM_EVENT_ROUTE_RESOLVED);
        assert_eq!((*id).route.num_paths, 1);
        assert_eq!((*(*id).route.path_rec).mtu, 3);
        said(ov_rdma_create_qp(id, null_mut(), &mut queue_pair_attributes())).unwrap();
        assert_eq!((*(*id).qp).state, IBV_QPS_INIT);
        assert!(!(*id).send_cq.is_null() && !(*id).recv_cq_channel.is_null());
    }
    id
}

/// Destroys identifiers, and sees that nothing is left of them.
fn destroy(ids: &[*mut rdma_cm_id]) {
    for id in ids {
        // SAFETY: live, for the last time.
        unsafe { ov_rdma_destroy_ep(*id) };
    }
    assert_eq!((id_registry::count(), fake_daemon::counts().0), (0, 0));
}

#[test]
fn a_connection_is_made_used_and_ended() {
    let _alone = alone();
    let (server, client) = (channel(), channel());
    let listener = listen(server, 100);
    let asks = resolve(client, 100);
    // SAFETY: live.
    unsafe {
        said(ov_rdma_connect(asks, &parameters(b"hello"))).unwrap();
        let request = next(server);
        assert_eq!((request.kind, request.listener), (RDMA_CM_EVENT_CONNECT_REQUEST, listener));
        assert_eq!((request.private.len(), &request.private[..6]), (56, &b"hello\0"[..]));
        let takes = request.id;
        assert!(takes != listener && (*takes).verbs == (*asks).verbs);
        assert_eq!((*takes).ps, RDMA_PS_TCP);
        assert_eq!(u16::from_be(ov_rdma_get_dst_port(takes)), 50_000);
        said(ov_rdma_create_qp(takes, null_mut(), &mut queue_pair_attributes())).unwrap();
        said(ov_rdma_accept(takes, &parameters(b"welcome"))).unwrap();
        assert_eq!((*(*takes).qp).state, IBV_QPS_RTS);
        // The queue pair goes on when the answer is taken, not when it comes.
        assert_eq!((*(*asks).qp).state, IBV_QPS_INIT);
        let answer = next(client);
        assert_eq!((answer.kind, answer.id), (RDMA_CM_EVENT_ESTABLISHED, asks));
        assert_eq!((answer.private.len(), &answer.private[..8]), (196, &b"welcome\0"[..]));
        assert_eq!((*(*asks).qp).state, IBV_QPS_RTS);
        let established = next(server);
        assert_eq!((established.kind, established.id), (RDMA_CM_EVENT_ESTABLISHED, takes));
        said(ov_rdma_disconnect(asks)).unwrap();
        assert_eq!((*(*asks).qp).state, IBV_QPS_ERR);
        for (channel, id) in [(server, takes), (client, asks)] {
            let seen = next(channel);
            assert_eq!((seen.kind, seen.id), (RDMA_CM_EVENT_DISCONNECTED, id));
            assert_eq!(next(channel).kind, RDMA_CM_EVENT_TIMEWAIT_EXIT);
            assert!(!is_readable(channel));
        }
        destroy(&[takes, asks, listener]);
        crate::event_channel::ov_rdma_destroy_event_channel(server);
        crate::event_channel::ov_rdma_destroy_event_channel(client);
    }
}

#[test]
fn an_srq_for_xrc_takes_no_queue_from_a_queue_pair() {
    let _alone = alone();
    let channel = channel();
    let id = resolve(channel, 100);
    // SAFETY: live; a thing of pointers and numbers; no domain is looked at.
    unsafe {
        let mut attr: ibv_srq_init_attr_ex = core::mem::zeroed();
        let parts = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD;
        let ask = |attr: &mut ibv_srq_init_attr_ex, longer: i32, entries| {
            attr.attr.max_wr = longer.cast_unsigned();
            attr.attr.max_sge = entries;
            (attr.comp_mask, attr.srq_type) = (parts, IBV_SRQT_XRC);
            attr.xrcd = core::ptr::dangling_mut();
            said(ov_rdma_create_srq_ex(id, attr))
        };
        let (queue, other) = ((*id).recv_cq, (*id).send_cq);
        let fits = (*queue).cqe;
        assert_eq!(ask(&mut attr, fits + 1, 1), Err(libc::EINVAL), "it is too short, and used");
        assert_eq!(((*id).recv_cq, (*id).send_cq), (queue, other));
        ask(&mut attr, fits, 1).unwrap();
        assert!(attr.cq == queue && !(*id).srq.is_null());
        ov_rdma_destroy_srq(id);
        assert_eq!(((*id).recv_cq, (*id).send_cq), (queue, other), "the queue pair has them yet");
        ov_rdma_destroy_qp(id);
        assert!((*id).recv_cq.is_null());
        // What was made for it goes with it.
        assert_eq!(ask(&mut attr, 5, fake_ibverbs::TOO_MANY), Err(libc::EINVAL));
        assert!((*id).recv_cq.is_null() && (*id).recv_cq_channel.is_null() && attr.cq.is_null());
        ask(&mut attr, 5, 1).unwrap();
        assert!(!attr.cq.is_null() && attr.cq == (*id).recv_cq);
        ov_rdma_destroy_srq(id);
        destroy(&[id]);
        crate::event_channel::ov_rdma_destroy_event_channel(channel);
    }
}

#[test]
fn a_queue_pair_of_the_programs_own_gets_what_it_needs() {
    let _alone = alone();
    let (server, client) = (channel(), channel());
    let listener = listen(server, 100);
    let asks = resolve(client, 100);
    // SAFETY: live.
    unsafe {
        ov_rdma_destroy_qp(asks);
        let mut given = parameters(b"");
        given.qp_num = 77;
        said(ov_rdma_connect(asks, &given)).unwrap();
        let request = taken(server);
        assert_eq!((*request).param.conn.qp_num, 77);
        // What the peer serves is what it may have under way, and the other way round.
        assert_eq!((*request).param.conn.responder_resources, given.initiator_depth);
        let takes = (*request).id;
        said(ov_rdma_ack_cm_event(request)).unwrap();
        assert_eq!(said(ov_rdma_accept(takes, null())), Err(libc::EINVAL));
        given.qp_num = 78;
        said(ov_rdma_accept(takes, &given)).unwrap();
        assert_eq!(next(client).kind, RDMA_CM_EVENT_CONNECT_RESPONSE);
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, ..ibv_qp_attr::default() };
        let mut mask = 0;
        said(crate::qp_attributes::ov_rdma_init_qp_attr(asks, &mut attr, &mut mask)).unwrap();
        let all = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        assert_eq!(mask.cast_unsigned(), all);
        assert_eq!((attr.dest_qp_num, attr.ah_attr.grh.sgid_index), (78, 1));
        said(ov_rdma_establish(asks)).unwrap();
        assert_eq!(next(server).kind, RDMA_CM_EVENT_ESTABLISHED);
        destroy(&[takes, asks, listener]);
        crate::event_channel::ov_rdma_destroy_event_channel(server);
        crate::event_channel::ov_rdma_destroy_event_channel(client);
    }
}

#[test]
fn a_refused_process_is_told_the_reason() {
    let _alone = alone();
    let (server, client) = (channel(), channel());
    let listener = listen(server, 100);
    let (asks, nobody) = (resolve(client, 100), resolve(client, 101));
    // SAFETY: live.
    unsafe {
        said(ov_rdma_connect(nobody, null())).unwrap();
        let seen = next(client);
        assert_eq!((seen.kind, seen.status, seen.id), (RDMA_CM_EVENT_REJECTED, 8, nobody));
        said(ov_rdma_connect(asks, null())).unwrap();
        let takes = next(server).id;
        said(ov_rdma_reject(takes, b"no".as_ptr().cast(), 2)).unwrap();
        let seen = next(client);
        assert_eq!((seen.kind, seen.status, seen.id), (RDMA_CM_EVENT_REJECTED, 28, asks));
        assert_eq!((seen.private.len(), &seen.private[..3]), (148, &b"no\0"[..]));
        assert_eq!((*(*asks).qp).state, IBV_QPS_ERR);
        destroy(&[takes, asks, nobody, listener]);
        crate::event_channel::ov_rdma_destroy_event_channel(server);
        crate::event_channel::ov_rdma_destroy_event_channel(client);
    }
}

#[test]
fn without_a_channel_calls_wait() {
    let _alone = alone();
    let listener = listen(null_mut(), 100);
    let waiting = listener.expose_provenance();
    let server = std::thread::spawn(move || {
        let listener = core::ptr::with_exposed_provenance_mut(waiting);
        let mut request = null_mut();
        // SAFETY: live.
        unsafe {
            said(ov_rdma_get_request(listener, &mut request)).unwrap();
            said(ov_rdma_create_qp(request, null_mut(), &mut queue_pair_attributes())).unwrap();
            said(ov_rdma_accept(request, null())).unwrap();
            assert_eq!((*(*request).event).event, RDMA_CM_EVENT_ESTABLISHED);
        }
        request.expose_provenance()
    });
    let (mut to, mut refused) = (here(100), here(101));
    // SAFETY: numbers and pointers: zero is valid.
    let mut found: rdma_addrinfo = unsafe { core::mem::zeroed() };
    found.ai_port_space = RDMA_PS_TCP.cast_signed();
    found.ai_qp_type = IBV_QPT_RC.cast_signed();
    // SAFETY: live.
    unsafe {
        let make = |to: *mut libc::sockaddr_storage, found: &mut rdma_addrinfo| {
            found.ai_dst_addr = to.cast();
            let mut made = null_mut();
            let mut attr = queue_pair_attributes();
            said(ov_rdma_create_ep(&mut made, found, null_mut(), &mut attr)).unwrap();
            made
        };
        let nobody = make(&mut refused, &mut found);
        assert_eq!(said(ov_rdma_connect(nobody, null())), Err(libc::ECONNREFUSED));
        let asks = make(&mut to, &mut found);
        said(ov_rdma_connect(asks, null())).unwrap();
        assert_eq!((*(*asks).qp).state, IBV_QPS_RTS);
        let takes: *mut rdma_cm_id = core::ptr::with_exposed_provenance_mut(server.join().unwrap());
        assert_eq!((*(*takes).qp).state, IBV_QPS_RTS);
        said(ov_rdma_disconnect(takes)).unwrap();
        said(ov_rdma_disconnect(asks)).unwrap();
        destroy(&[takes, asks, nobody, listener]);
    }
}

#[test]
fn untaken_requests_are_refused_when_their_listener_ends() {
    let _alone = alone();
    let (server, client) = (channel(), channel());
    let listener = listen(server, 100);
    let ids = [(); 3].map(|()| resolve(client, 100));
    // SAFETY: live.
    unsafe {
        ids.iter().for_each(|id| said(ov_rdma_connect(*id, null())).unwrap());
        let takes = next(server).id;
        fake_daemon::counts();
        said(ov_rdma_destroy_id(listener)).unwrap();
        assert_eq!(fake_daemon::counts().1, 2);
        assert!(!is_readable(server));
        destroy(&[takes, ids[0], ids[1], ids[2]]);
        crate::event_channel::ov_rdma_destroy_event_channel(server);
        crate::event_channel::ov_rdma_destroy_event_channel(client);
    }
}

#[test]
fn events_before_a_request_is_accepted_are_not_reported() {
    let _alone = alone();
    let (server, client) = (channel(), channel());
    let listener = listen(server, 100);
    let asks = resolve(client, 100);
    // SAFETY: live.
    unsafe {
        said(ov_rdma_connect(asks, null())).unwrap();
        let takes = next(server).id;
        let handle = IdShell::of(takes).handle().unwrap();
        fake_daemon::happens(fake_daemon::nothing_but(RDMA_CM_EVENT_UNREACHABLE, handle, -110));
        assert!(!is_readable(server));
        destroy(&[takes, asks, listener]);
        crate::event_channel::ov_rdma_destroy_event_channel(server);
        crate::event_channel::ov_rdma_destroy_event_channel(client);
    }
}

#[test]
fn a_dead_daemon_leaves_no_call_waiting() {
    let _alone = alone();
    let (server, client) = (channel(), channel());
    let listener = listen(server, 100);
    let (connected, waits) = (resolve(client, 100), resolve(client, 100));
    // SAFETY: live.
    unsafe {
        said(ov_rdma_connect(connected, null())).unwrap();
        let takes = next(server).id;
        said(ov_rdma_create_qp(takes, null_mut(), &mut queue_pair_attributes())).unwrap();
        said(ov_rdma_accept(takes, null())).unwrap();
        assert_eq!(next(client).kind, RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!(next(server).kind, RDMA_CM_EVENT_ESTABLISHED);
        fake_daemon::be_silent(true);
        said(ov_rdma_connect(waits, null())).unwrap();
        fake_daemon::die();
        let seen = next(client);
        assert_eq!((seen.kind, seen.id), (RDMA_CM_EVENT_UNREACHABLE, waits));
        assert_eq!(seen.status, -libc::ECONNRESET);
        fake_daemon::be_silent(false);
        let seen = next(server);
        assert_eq!((seen.kind, seen.id, seen.status), (RDMA_CM_EVENT_DEVICE_REMOVAL, listener, 0));
        // What is connected is told nothing: its data goes on.
        assert!(!is_readable(client) && !is_readable(server));
        assert_eq!((*(*connected).qp).state, IBV_QPS_RTS);
        said(ov_rdma_disconnect(connected)).unwrap();
        assert_eq!(next(client).kind, RDMA_CM_EVENT_DISCONNECTED);
        assert_eq!(said(ov_rdma_listen(listener, 1)), Err(libc::ENODEV));
        // The next daemon's identifiers have nothing to do with those.
        let mut count = 0;
        let devices = ov_rdma_get_devices(&mut count);
        assert_eq!((count, *devices), (1, (*connected).verbs));
        crate::device::ov_rdma_free_devices(devices);
        destroy(&[takes, connected, waits, listener]);
        crate::event_channel::ov_rdma_destroy_event_channel(server);
        crate::event_channel::ov_rdma_destroy_event_channel(client);
    }
}
