//! Compares this crate with the installed `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`: sizes,
//! offsets and numbers are printed as `_Static_assert`s from what the Rust compiler says and handed
//! to the C compiler.
//! What the installed header is too old for is compared with numbers written down here.
#[macro_use]
#[path = "layout/harness.rs"]
mod harness;

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};

use harness::compile;
use omniverb_abi::*;

#[test]
fn layouts_of_devices_and_paths_equal_cs() {
    let body = c_layout! {
        ibv_device = "struct ibv_device" {
            _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_device_attr = "struct ibv_device_attr" {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
            vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
            max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
            max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw,
            max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
            max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
            max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt }
        ibv_query_device_ex_input = "struct ibv_query_device_ex_input" { comp_mask }
        ibv_odp_caps = "struct ibv_odp_caps" { general_caps, per_transport_caps }
        ibv_tso_caps = "struct ibv_tso_caps" { max_tso, supported_qpts }
        ibv_rss_caps = "struct ibv_rss_caps" {
            supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size,
            rx_hash_fields_mask, rx_hash_function }
        ibv_packet_pacing_caps = "struct ibv_packet_pacing_caps" {
            qp_rate_limit_min, qp_rate_limit_max, supported_qpts }
        ibv_tm_caps = "struct ibv_tm_caps" {
            max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge }
        ibv_cq_moderation_caps = "struct ibv_cq_moderation_caps" { max_cq_count, max_cq_period }
        ibv_pci_atomic_caps = "struct ibv_pci_atomic_caps" { fetch_add, swap, compare_swap }
        ibv_device_attr_ex = "struct ibv_device_attr_ex" {
            orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock,
            device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
            raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps,
            phys_port_cnt_ex }
        ibv_gid_entry = "struct ibv_gid_entry" {
            gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_gid = "union ibv_gid" { raw }
        ibv_global_route = "struct ibv_global_route" {
            dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr = "struct ibv_ah_attr" {
            grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_ah = "struct ibv_ah" { context, pd, handle }
        ibv_grh = "struct ibv_grh" {
            version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        ibv_sa_path_rec = "struct ibv_sa_path_rec" {
            dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible,
            numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate,
            packet_life_time_selector, packet_life_time, preference }
        ibv_path_record = "struct ibv_path_record" {
            service_id, dgid, sgid, dlid, slid, flowlabel_hoplimit, tclass, reversible_numpath,
            pkey, qosclass_sl, mtu, rate, packetlifetime, preference, reserved }
        ibv_path_data = "struct ibv_path_data" { flags, reserved, path }
        ib_user_path_rec = "struct ib_user_path_rec" {
            dgid, sgid, dlid, slid, raw_traffic, flow_label, reversible, mtu, pkey, hop_limit,
            traffic_class, numb_path, sl, mtu_selector, rate_selector, rate,
            packet_life_time_selector, packet_life_time, preference }
        ib_uverbs_global_route = "struct ib_uverbs_global_route" {
            dgid, flow_label, sgid_index, hop_limit, traffic_class, reserved }
        ib_uverbs_ah_attr = "struct ib_uverbs_ah_attr" {
            grh, dlid, sl, src_path_bits, static_rate, is_global, port_num, reserved }
        ib_uverbs_qp_attr = "struct ib_uverbs_qp_attr" {
            qp_attr_mask, qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
            dest_qp_num, qp_access_flags, ah_attr, alt_ah_attr, max_send_wr, max_recv_wr,
            max_send_sge, max_recv_sge, max_inline_data, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, reserved }
    };
    compile("devices_and_paths", &body).unwrap();
}

#[test]
fn layouts_of_memory_and_work_requests_equal_cs() {
    let body = c_layout! {
        ibv_pd = "struct ibv_pd" { context, handle }
        ibv_mr = "struct ibv_mr" { context, pd, addr, length, handle, lkey, rkey }
        ibv_mw = "struct ibv_mw" { context, pd, rkey, handle, r#type }
        ibv_mw_bind_info = "struct ibv_mw_bind_info" { mr, addr, length, mw_access_flags }
        ibv_mw_bind = "struct ibv_mw_bind" { wr_id, send_flags, bind_info }
        ibv_alloc_dm_attr = "struct ibv_alloc_dm_attr" { length, log_align_req, comp_mask }
        ibv_dm = "struct ibv_dm" { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
        ibv_sge = "struct ibv_sge" { addr, length, lkey }
        ibv_data_buf = "struct ibv_data_buf" { addr, length }
        ibv_recv_wr = "struct ibv_recv_wr" { wr_id, next, sg_list, num_sge }
        ibv_send_wr = "struct ibv_send_wr" {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr,
            remote_srqn = "qp_type.xrc.remote_srqn", tail = "bind_mw" }
        ibv_wc = "struct ibv_wc" {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits }
        ibv_wc_tm_info = "struct ibv_wc_tm_info" { tag, r#priv }
        ibv_poll_cq_attr = "struct ibv_poll_cq_attr" { comp_mask }
        ibv_ops_wr = "struct ibv_ops_wr" {
            wr_id, next, opcode, flags, unexpected_cnt = "tm.unexpected_cnt",
            handle = "tm.handle", add = "tm.add" }
    };
    let mut body = body;
    let wr = offset_of!(ibv_send_wr, wr);
    let tail = offset_of!(ibv_send_wr, tail);
    for (field, offset) in [
        ("wr.rdma.remote_addr", wr + offset_of!(ibv_send_wr_rdma, remote_addr)),
        ("wr.rdma.rkey", wr + offset_of!(ibv_send_wr_rdma, rkey)),
        ("wr.atomic.compare_add", wr + offset_of!(ibv_send_wr_atomic, compare_add)),
        ("wr.atomic.swap", wr + offset_of!(ibv_send_wr_atomic, swap)),
        ("wr.atomic.rkey", wr + offset_of!(ibv_send_wr_atomic, rkey)),
        ("wr.ud.ah", wr + offset_of!(ibv_send_wr_ud, ah)),
        ("wr.ud.remote_qpn", wr + offset_of!(ibv_send_wr_ud, remote_qpn)),
        ("wr.ud.remote_qkey", wr + offset_of!(ibv_send_wr_ud, remote_qkey)),
        ("bind_mw.mw", tail + offset_of!(ibv_send_wr_bind_mw, mw)),
        ("bind_mw.rkey", tail + offset_of!(ibv_send_wr_bind_mw, rkey)),
        ("bind_mw.bind_info", tail + offset_of!(ibv_send_wr_bind_mw, bind_info)),
        ("tso.hdr", tail + offset_of!(ibv_send_wr_tso, hdr)),
        ("tso.hdr_sz", tail + offset_of!(ibv_send_wr_tso, hdr_sz)),
        ("tso.mss", tail + offset_of!(ibv_send_wr_tso, mss)),
    ] {
        writeln!(body, "AT(struct ibv_send_wr, {field}, {offset});").unwrap();
    }
    compile("memory_and_work", &body).unwrap();
}

#[test]
fn layouts_of_queues_equal_cs() {
    let body = c_layout! {
        ibv_comp_channel = "struct ibv_comp_channel" { context, fd, refcnt }
        ibv_async_event = "struct ibv_async_event" { element, event_type }
        ibv_cq = "struct ibv_cq" {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed }
        ibv_cq_ex = "struct ibv_cq_ex" {
            cq = "context", comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode,
            read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp,
            read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts,
            read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns }
        ibv_srq = "struct ibv_srq" {
            context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_qp = "struct ibv_qp" {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex,
            cond, events_completed }
        ibv_qp_cap = "struct ibv_qp_cap" {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr = "struct ibv_qp_init_attr" {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_rx_hash_conf = "struct ibv_rx_hash_conf" {
            rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask }
        ibv_qp_init_attr_ex = "struct ibv_qp_init_attr_ex" {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
            create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags }
        ibv_qp_open_attr = "struct ibv_qp_open_attr" {
            comp_mask, qp_num, xrcd, qp_context, qp_type }
        ibv_qp_attr = "struct ibv_qp_attr" {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit }
        ibv_qp_rate_limit_attr = "struct ibv_qp_rate_limit_attr" {
            rate_limit, max_burst_sz, typical_pkt_sz, comp_mask }
        ibv_ece = "struct ibv_ece" { vendor_id, options, comp_mask }
        ibv_srq_attr = "struct ibv_srq_attr" { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr = "struct ibv_srq_init_attr" { srq_context, attr }
        ibv_tm_cap = "struct ibv_tm_cap" { max_num_tags, max_ops }
        ibv_srq_init_attr_ex = "struct ibv_srq_init_attr_ex" {
            srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
        ibv_cq_init_attr_ex = "struct ibv_cq_init_attr_ex" {
            cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain }
        ibv_moderate_cq = "struct ibv_moderate_cq" { cq_count, cq_period }
        ibv_modify_cq_attr = "struct ibv_modify_cq_attr" { attr_mask, moderate }
    };
    compile("queues", &body).unwrap();
}

#[test]
fn layouts_of_unsupported_verbs_equal_cs() {
    let body = c_layout! {
        ibv_wq = "struct ibv_wq" {
            context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, mutex, cond,
            events_completed, comp_mask }
        ibv_wq_init_attr = "struct ibv_wq_init_attr" {
            wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask, create_flags }
        ibv_wq_attr = "struct ibv_wq_attr" {
            attr_mask, wq_state, curr_wq_state, flags, flags_mask }
        ibv_rwq_ind_table = "struct ibv_rwq_ind_table" {
            context, ind_tbl_handle, ind_tbl_num, comp_mask }
        ibv_rwq_ind_table_init_attr = "struct ibv_rwq_ind_table_init_attr" {
            log_ind_tbl_size, ind_tbl, comp_mask }
        ibv_xrcd = "struct ibv_xrcd" { context }
        ibv_xrcd_init_attr = "struct ibv_xrcd_init_attr" { comp_mask, fd, oflags }
        ibv_td = "struct ibv_td" { context }
        ibv_td_init_attr = "struct ibv_td_init_attr" { comp_mask }
        ibv_parent_domain_init_attr = "struct ibv_parent_domain_init_attr" {
            pd, td, comp_mask, alloc, free, pd_context }
        ibv_counters = "struct ibv_counters" { context }
        ibv_counters_init_attr = "struct ibv_counters_init_attr" { comp_mask }
        ibv_counter_attach_attr = "struct ibv_counter_attach_attr" {
            counter_desc, index, comp_mask }
        ibv_values_ex = "struct ibv_values_ex" { comp_mask, raw_clock }
        ibv_flow = "struct ibv_flow" { comp_mask, context, handle }
        ibv_flow_attr = "struct ibv_flow_attr" {
            comp_mask, r#type, size, priority, num_of_specs, port, flags }
        ibv_flow_action = "struct ibv_flow_action" { context }
    };
    compile("verbs_not_offered", &body).unwrap();
}

#[test]
fn layouts_of_connections_equal_cs() {
    let body = c_layout! {
        rdma_ib_addr = "struct rdma_ib_addr" { sgid, dgid, pkey }
        rdma_addr = "struct rdma_addr" { src_storage, dst_storage, ibaddr = "addr.ibaddr" }
        rdma_route = "struct rdma_route" { addr, path_rec, num_paths }
        rdma_event_channel = "struct rdma_event_channel" { fd }
        rdma_cm_id = "struct rdma_cm_id" {
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type }
        rdma_conn_param = "struct rdma_conn_param" {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num }
        rdma_ud_param = "struct rdma_ud_param" {
            private_data, private_data_len, ah_attr, qp_num, qkey }
        rdma_cm_event = "struct rdma_cm_event" { id, listen_id, event, status, param }
        rdma_addrinfo = "struct rdma_addrinfo" {
            ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr,
            ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route,
            ai_connect_len, ai_connect, ai_next }
        rdma_cm_join_mc_attr_ex = "struct rdma_cm_join_mc_attr_ex" { comp_mask, join_flags, addr }
    };
    compile("connections", &body).unwrap();
}

#[test]
fn the_context_layout_equals_cs() {
    let mut body = c_layout! {
        ibv_context = "struct ibv_context" {
            device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_context_ops = "struct ibv_context_ops" {
            _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd,
            _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw,
            _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq,
            _compat_destroy_cq, _compat_create_srq, _compat_modify_srq, _compat_query_srq,
            _compat_destroy_srq, post_srq_recv, _compat_create_qp, _compat_query_qp,
            _compat_modify_qp, _compat_destroy_qp, post_send, post_recv, _compat_create_ah,
            _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast, _compat_async_event }
    };
    // Slots count from the context at the end, so that they hold for every release.
    macro_rules! slots {
        ($($field:ident $(= $c:literal)?),* $(,)?) => {$({
            let name = stringify!($field).trim_start_matches("r#");
            $(let name = { let _ = name; $c };)?
            let base = offset_of!(verbs_context, context) as isize;
            let slot = offset_of!(verbs_context, $field) as isize - base;
            writeln!(body, "SLOT({name}, {slot});").unwrap();
        })*};
    }
    slots!(
        query_port,
        advise_mr,
        alloc_null_mr,
        read_counters,
        attach_counters_point_flow,
        create_counters,
        destroy_counters,
        reg_dm_mr,
        alloc_dm,
        free_dm,
        modify_flow_action_esp,
        destroy_flow_action,
        create_flow_action_esp,
        modify_qp_rate_limit,
        alloc_parent_domain,
        dealloc_td,
        alloc_td,
        modify_cq,
        post_srq_ops,
        destroy_rwq_ind_table,
        create_rwq_ind_table,
        destroy_wq,
        modify_wq,
        create_wq,
        query_rt_values,
        create_cq_ex,
        r#priv,
        query_device_ex,
        ibv_destroy_flow,
        _abi_placeholder2 = "ABI_placeholder2",
        ibv_create_flow,
        _abi_placeholder1 = "ABI_placeholder1",
        open_qp,
        create_qp_ex,
        get_srq_num,
        create_srq_ex,
        open_xrcd,
        close_xrcd,
        _abi_placeholder3 = "_ABI_placeholder3",
        sz
    );
    compile("context", &body).unwrap();
}

#[test]
fn releases_newer_than_the_header() {
    let slot = |offset: usize| offset as isize - offset_of!(verbs_context, context) as isize;
    assert_eq!(slot(offset_of!(verbs_context, free_buf)), -368);
    assert_eq!(slot(offset_of!(verbs_context, alloc_buf)), -360);
    assert_eq!(slot(offset_of!(verbs_context, dm_export_dmabuf_fd)), -352);
    assert_eq!(slot(offset_of!(verbs_context, reg_mr_ex)), -344);
    assert_eq!(slot(offset_of!(verbs_context, dealloc_dmah)), -336);
    assert_eq!(slot(offset_of!(verbs_context, alloc_dmah)), -328);
    assert_eq!(slot(offset_of!(verbs_context, query_port)), -320);
    assert_eq!(size_of::<ibv_port_attr>(), 56);
    assert_eq!(offset_of!(ibv_port_attr, active_speed_ex), 52);
    assert_eq!((size_of::<ibv_comp_cntr>(), offset_of!(ibv_comp_cntr, handle)), (16, 8));
    let init =
        (offset_of!(ibv_comp_cntr_init_attr, r#type), offset_of!(ibv_comp_cntr_init_attr, flags));
    assert_eq!((size_of::<ibv_comp_cntr_init_attr>(), init), (12, (4, 8)));
    let operations = offset_of!(ibv_qp_attach_comp_cntr_attr, op_mask);
    assert_eq!((size_of::<ibv_qp_attach_comp_cntr_attr>(), operations), (8, 4));
    let limits = offset_of!(ibv_comp_cntr_caps, max_counters);
    let operations = offset_of!(ibv_comp_cntr_caps, supported_qp_attach_ops);
    assert_eq!((size_of::<ibv_comp_cntr_caps>(), limits, operations), (16, 8, 12));
    assert_eq!(offset_of!(ibv_qp_ex, wr_flush), 352);
    assert_eq!(size_of::<ibv_qp_ex>(), 360);
    #[cfg(target_arch = "x86_64")]
    assert_eq!(size_of::<verbs_context>(), 696);
    // The part that the installed header knows.
    let mut body = String::new();
    macro_rules! heads {
        ($($rust:ident: $($field:ident),*;)*) => {$($(
            let offset = offset_of!($rust, $field);
            writeln!(body, "AT(struct {}, {}, {offset});", stringify!($rust), stringify!($field))
                .unwrap();
        )*)*};
    }
    heads! {
        ibv_port_attr: state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz,
            bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl,
            subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer,
            flags, port_cap_flags2;
        ibv_qp_ex: qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add,
            wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send,
            wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn,
            wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start,
            wr_complete, wr_abort, wr_atomic_write;
    }
    compile("newer", &body).unwrap();
}

#[test]
fn constants_equal_cs() {
    // Not in the header of Debian 12; written down from newer releases.
    let newer = [
        "IBV_QP_EX_WITH_FLUSH",
        "IBV_WC_FLUSH",
        "IBV_WR_FLUSH",
        "IBV_ACCESS_FLUSH_GLOBAL",
        "IBV_ACCESS_FLUSH_PERSISTENT",
        "IBV_ODP_SUPPORT_FLUSH",
        "IBV_ODP_SUPPORT_ATOMIC_WRITE",
        // Of the kernel's header.
        "IB_UVERBS_DEVICE_FLUSH_GLOBAL",
        "IB_UVERBS_DEVICE_ATOMIC_WRITE",
        "IBV_EVENT_DEVICE_SPEED_CHANGE",
        "RAI_SA",
        "RAI_DNS",
        "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        "RDMA_CM_EVENT_ADDRINFO_ERROR",
        "RDMA_CM_EVENT_USER",
        "RDMA_CM_EVENT_INTERNAL",
        // Ours, without a name in C.
        "IBV_PORT_ATTR_COMPAT_LEN",
        "VERBS_ABI_IS_EXTENDED",
    ];
    let sources = [
        include_str!("../src/constants.rs"),
        include_str!("../src/device_constants.rs"),
        include_str!("../src/connection.rs"),
    ];
    let mut body = String::new();
    let mut count = 0;
    for line in sources.iter().flat_map(|text| text.lines()) {
        let Some(rest) = line.strip_prefix("pub const ") else { continue };
        let (name, rest) = rest.split_once(": ").expect("a typed constant");
        let value = rest.split_once("= ").and_then(|(_, v)| v.strip_suffix(';')).expect("a value");
        if !newer.contains(&name) {
            writeln!(body, "IS({name}, {});", value.replace('_', "")).unwrap();
            count += 1;
        }
    }
    assert!(count > 300, "only {count} constants found in the source");
    compile("numbers", &body).unwrap();
}

/// The tests above can fail.
#[test]
fn a_wrong_number_is_noticed() {
    assert!(compile("wrong_size", "SIZE(struct ibv_qp, 161);").is_err());
    assert!(compile("wrong_offset", "AT(struct ibv_wc, byte_len, 24);").is_err());
    assert!(compile("wrong_number", "IS(IBV_QPS_RTS, 4);").is_err());
}
