//! The pure functions must answer like the libibverbs that programs know. The installed one is
//! opened beside ours and asked the same questions.
// UNSAFETY: calls C functions of a library opened by name.
#![expect(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;

use omniverb_abi::*;
use omniverb_ibverbs::{enum_names, kernel_abi_conversion, rate_conversion, read_sysfs_file};

/// A function of the installed library.
fn stock(name: &str) -> *mut c_void {
    let path = c"/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
    // SAFETY: a terminated path; the library stays open.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "no libibverbs to compare with: install libibverbs1");
    let name = CString::new(name).unwrap();
    // SAFETY: an open library and a terminated name.
    let function = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!function.is_null(), "{name:?} is missing");
    function
}

macro_rules! stock_fn {
    ($name:literal, $type:ty) => {
        // SAFETY: the type is the C prototype of that function.
        unsafe { std::mem::transmute::<*mut c_void, $type>(stock($name)) }
    };
}

fn text(pointer: *const c_char) -> String {
    // SAFETY: both libraries return terminated static strings.
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned()
}

#[test]
fn rate_conversions_equal_the_installed_librarys() {
    let to_mult = stock_fn!("ibv_rate_to_mult", extern "C" fn(u32) -> c_int);
    let to_mbps = stock_fn!("ibv_rate_to_mbps", extern "C" fn(u32) -> c_int);
    let from_mult = stock_fn!("mult_to_ibv_rate", extern "C" fn(c_int) -> u32);
    let from_mbps = stock_fn!("mbps_to_ibv_rate", extern "C" fn(c_int) -> u32);
    for code in (0..64).chain([u32::MAX, 1 << 31]) {
        assert_eq!(rate_conversion::ov_ibv_rate_to_mult(code), to_mult(code), "rate {code}");
        assert_eq!(rate_conversion::ov_ibv_rate_to_mbps(code), to_mbps(code), "rate {code}");
    }
    for mult in -8..1000 {
        assert_eq!(rate_conversion::ov_mult_to_ibv_rate(mult), from_mult(mult), "multiple {mult}");
    }
    for mbps in -8..1_400_000 {
        assert_eq!(rate_conversion::ov_mbps_to_ibv_rate(mbps), from_mbps(mbps), "{mbps} Mbit/s");
    }
}

#[test]
fn enum_names_equal_the_installed_librarys() {
    let node = stock_fn!("ibv_node_type_str", extern "C" fn(i32) -> *const c_char);
    for n in -2..12 {
        assert_eq!(text(enum_names::ov_ibv_node_type_str(n)), text(node(n)), "node type {n}");
    }
    type Name = extern "C" fn(u32) -> *const c_char;
    let port = stock_fn!("ibv_port_state_str", Name);
    let event = stock_fn!("ibv_event_type_str", Name);
    let wc = stock_fn!("ibv_wc_status_str", Name);
    for n in (0..40).chain([u32::MAX, 1 << 31]) {
        assert_eq!(text(enum_names::ov_ibv_port_state_str(n)), text(port(n)), "port state {n}");
        assert_eq!(text(enum_names::ov_ibv_wc_status_str(n)), text(wc(n)), "status {n}");
        if n != IBV_EVENT_DEVICE_SPEED_CHANGE {
            assert_eq!(text(enum_names::ov_ibv_event_type_str(n)), text(event(n)), "event {n}");
        }
    }
}

/// Runs both copy functions over the same bytes, several patterns, and compares what they wrote
/// into two buffers that held the same bytes before.
fn same_copy<D, S>(
    ours: unsafe extern "C" fn(*mut D, *const S),
    theirs: unsafe extern "C" fn(*mut D, *const S),
    compared: impl Fn(&D) -> Vec<u64>,
) {
    for round in 0..16_u8 {
        let mut src = MaybeUninit::<S>::zeroed();
        let bytes = src.as_mut_ptr().cast::<u8>();
        for i in 0..size_of::<S>() {
            let byte = (i as u8).wrapping_mul(37).wrapping_add(round.wrapping_mul(101));
            // SAFETY: inside the struct.
            unsafe { bytes.add(i).write(byte) };
        }
        let mut a = MaybeUninit::<D>::zeroed();
        let mut b = MaybeUninit::<D>::zeroed();
        // SAFETY: both point to whole structs of integers, for which every byte is valid.
        let (a, b) = unsafe {
            ours(a.as_mut_ptr(), src.as_ptr());
            theirs(b.as_mut_ptr(), src.as_ptr());
            (a.assume_init(), b.assume_init())
        };
        assert_eq!(compared(&a), compared(&b), "round {round}");
    }
}

macro_rules! fields {
    ($($field:ident).+ $(, $($rest:ident).+)* $(,)?) => {
        |s| vec![s.$($field).+ as u64 $(, s.$($rest).+ as u64)*]
    };
}

fn gid_words(gid: &ibv_gid) -> [u64; 2] {
    [0, 8].map(|at| u64::from_ne_bytes(gid.raw[at..at + 8].try_into().unwrap()))
}

fn ah_words(ah: &ibv_ah_attr) -> Vec<u64> {
    let f: fn(&ibv_ah_attr) -> Vec<u64> = fields!(
        grh.flow_label,
        grh.sgid_index,
        grh.hop_limit,
        grh.traffic_class,
        dlid,
        sl,
        src_path_bits,
        static_rate,
        is_global,
        port_num,
    );
    [gid_words(&ah.grh.dgid).to_vec(), f(ah)].concat()
}

#[test]
fn address_vectors_from_the_kernel() {
    type Copy = unsafe extern "C" fn(*mut ibv_ah_attr, *const ib_uverbs_ah_attr);
    let theirs = stock_fn!("ibv_copy_ah_attr_from_kern", Copy);
    same_copy(kernel_abi_conversion::ov_ibv_copy_ah_attr_from_kern, theirs, ah_words);
}

#[test]
fn queue_pair_attributes_from_the_kernel() {
    type Copy = unsafe extern "C" fn(*mut ibv_qp_attr, *const ib_uverbs_qp_attr);
    let theirs = stock_fn!("ibv_copy_qp_attr_from_kern", Copy);
    let plain: fn(&ibv_qp_attr) -> Vec<u64> = fields!(
        qp_state,
        cur_qp_state,
        path_mtu,
        path_mig_state,
        qkey,
        rq_psn,
        sq_psn,
        dest_qp_num,
        qp_access_flags,
        cap.max_send_wr,
        cap.max_recv_wr,
        cap.max_send_sge,
        cap.max_recv_sge,
        cap.max_inline_data,
        pkey_index,
        alt_pkey_index,
        en_sqd_async_notify,
        sq_draining,
        max_rd_atomic,
        max_dest_rd_atomic,
        min_rnr_timer,
        port_num,
        timeout,
        retry_cnt,
        rnr_retry,
        alt_port_num,
        alt_timeout,
        rate_limit,
    );
    same_copy(kernel_abi_conversion::ov_ibv_copy_qp_attr_from_kern, theirs, |s| {
        [plain(s), ah_words(&s.ah_attr), ah_words(&s.alt_ah_attr)].concat()
    });
}

#[test]
fn path_records_from_and_to_the_kernel() {
    type From = unsafe extern "C" fn(*mut ibv_sa_path_rec, *const ib_user_path_rec);
    let theirs = stock_fn!("ibv_copy_path_rec_from_kern", From);
    let plain: fn(&ibv_sa_path_rec) -> Vec<u64> = fields!(
        dlid,
        slid,
        raw_traffic,
        flow_label,
        hop_limit,
        traffic_class,
        reversible,
        numb_path,
        pkey,
        sl,
        mtu_selector,
        mtu,
        rate_selector,
        rate,
        packet_life_time_selector,
        packet_life_time,
        preference,
    );
    same_copy(kernel_abi_conversion::ov_ibv_copy_path_rec_from_kern, theirs, |s| {
        [gid_words(&s.dgid).to_vec(), gid_words(&s.sgid).to_vec(), plain(s)].concat()
    });
    type To = unsafe extern "C" fn(*mut ib_user_path_rec, *const ibv_sa_path_rec);
    let theirs = stock_fn!("ibv_copy_path_rec_to_kern", To);
    let plain: fn(&ib_user_path_rec) -> Vec<u64> = fields!(
        dlid,
        slid,
        raw_traffic,
        flow_label,
        hop_limit,
        traffic_class,
        reversible,
        numb_path,
        pkey,
        sl,
        mtu_selector,
        mtu,
        rate_selector,
        rate,
        packet_life_time_selector,
        packet_life_time,
        preference,
    );
    same_copy(kernel_abi_conversion::ov_ibv_copy_path_rec_to_kern, theirs, |s| {
        let gids = s.dgid.iter().chain(&s.sgid).map(|b| u64::from(*b));
        plain(s).into_iter().chain(gids).collect()
    });
}

#[test]
fn sysfs_reads_equal_the_installed_librarys() {
    let dir = std::env::temp_dir().join(format!("omniverb-sysfs-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    type Read = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_char, usize) -> c_int;
    let theirs = stock_fn!("ibv_read_sysfs_file", Read);
    let c_dir = CString::new(dir.to_str().unwrap()).unwrap();
    let file = c"value";
    let cases: [&[u8]; 7] = [b"", b"\n", b"a", b"abc\n", b"abcdefg", b"abcdefgh", b"abcdefg\n"];
    for content in cases {
        std::fs::write(dir.join("value"), content).unwrap();
        let mut ours_buf: [c_char; 16] = [0x55; 16];
        let mut their_buf = ours_buf;
        // SAFETY: terminated strings; the buffers are longer than the size given.
        let (ours, theirs) = unsafe {
            let ours = &mut ours_buf;
            (
                read_sysfs_file::ov_ibv_read_sysfs_file(
                    c_dir.as_ptr(),
                    file.as_ptr(),
                    ours.as_mut_ptr(),
                    8,
                ),
                theirs(c_dir.as_ptr(), file.as_ptr(), their_buf.as_mut_ptr(), 8),
            )
        };
        assert_eq!(ours, theirs, "{content:?}");
        // The other one leaves the buffer alone if the file is empty.
        if ours > 0 {
            assert_eq!(text(ours_buf.as_ptr()), text(their_buf.as_ptr()), "{content:?}");
        }
        assert_eq!(ours_buf[8..], [0x55; 8], "wrote past the end");
    }
    let mut buf: [c_char; 8] = [0; 8];
    let missing = c"missing";
    // SAFETY: as above.
    let result = unsafe {
        read_sysfs_file::ov_ibv_read_sysfs_file(
            c_dir.as_ptr(),
            missing.as_ptr(),
            buf.as_mut_ptr(),
            8,
        )
    };
    assert_eq!(result, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOENT));
    std::fs::remove_dir_all(&dir).unwrap();
    let path = stock_fn!("ibv_get_sysfs_path", extern "C" fn() -> *const c_char);
    assert_eq!(text(read_sysfs_file::ov_ibv_get_sysfs_path()), text(path()));
}
