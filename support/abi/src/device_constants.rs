//! Defines the numbers of verbs.h about devices and ports, group by group.
//!
//! `tests/layout.rs` compares them with the installed header.

// Kinds of nodes (`i32`: unknown is -1).
pub const IBV_NODE_UNKNOWN: i32 = -1;
pub const IBV_NODE_CA: i32 = 1;
pub const IBV_NODE_SWITCH: i32 = 2;
pub const IBV_NODE_ROUTER: i32 = 3;
pub const IBV_NODE_RNIC: i32 = 4;
pub const IBV_NODE_USNIC: i32 = 5;
pub const IBV_NODE_USNIC_UDP: i32 = 6;
pub const IBV_NODE_UNSPECIFIED: i32 = 7;

// Kinds of transport (`i32`: unknown is -1). RoCE counts as IB.
pub const IBV_TRANSPORT_UNKNOWN: i32 = -1;
pub const IBV_TRANSPORT_IB: i32 = 0;
pub const IBV_TRANSPORT_IWARP: i32 = 1;
pub const IBV_TRANSPORT_USNIC: i32 = 2;
pub const IBV_TRANSPORT_USNIC_UDP: i32 = 3;
pub const IBV_TRANSPORT_UNSPECIFIED: i32 = 4;

// Bits of `device_cap_flags`.
pub const IBV_DEVICE_RESIZE_MAX_WR: u32 = 1 << 0;
pub const IBV_DEVICE_BAD_PKEY_CNTR: u32 = 1 << 1;
pub const IBV_DEVICE_BAD_QKEY_CNTR: u32 = 1 << 2;
pub const IBV_DEVICE_RAW_MULTI: u32 = 1 << 3;
pub const IBV_DEVICE_AUTO_PATH_MIG: u32 = 1 << 4;
pub const IBV_DEVICE_CHANGE_PHY_PORT: u32 = 1 << 5;
pub const IBV_DEVICE_UD_AV_PORT_ENFORCE: u32 = 1 << 6;
pub const IBV_DEVICE_CURR_QP_STATE_MOD: u32 = 1 << 7;
pub const IBV_DEVICE_SHUTDOWN_PORT: u32 = 1 << 8;
pub const IBV_DEVICE_INIT_TYPE: u32 = 1 << 9;
pub const IBV_DEVICE_PORT_ACTIVE_EVENT: u32 = 1 << 10;
pub const IBV_DEVICE_SYS_IMAGE_GUID: u32 = 1 << 11;
pub const IBV_DEVICE_RC_RNR_NAK_GEN: u32 = 1 << 12;
pub const IBV_DEVICE_SRQ_RESIZE: u32 = 1 << 13;
pub const IBV_DEVICE_N_NOTIFY_CQ: u32 = 1 << 14;
pub const IBV_DEVICE_MEM_WINDOW: u32 = 1 << 17;
pub const IBV_DEVICE_UD_IP_CSUM: u32 = 1 << 18;
pub const IBV_DEVICE_XRC: u32 = 1 << 20;
pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: u32 = 1 << 21;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2A: u32 = 1 << 23;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
pub const IBV_DEVICE_RC_IP_CSUM: u32 = 1 << 25;
pub const IBV_DEVICE_RAW_IP_CSUM: u32 = 1 << 26;
pub const IBV_DEVICE_MANAGED_FLOW_STEERING: u32 = 1 << 29;

// Further bits of `device_cap_flags_ex`, which verbs.h passes on from the kernel (`u64`).
pub const IB_UVERBS_DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
pub const IB_UVERBS_DEVICE_ATOMIC_WRITE: u64 = 1 << 40;

// Values of `atomic_cap`.
pub const IBV_ATOMIC_NONE: u32 = 0;
pub const IBV_ATOMIC_HCA: u32 = 1;
pub const IBV_ATOMIC_GLOB: u32 = 2;

// Answers of `ibv_is_fork_initialized`.
pub const IBV_FORK_DISABLED: u32 = 0;
pub const IBV_FORK_ENABLED: u32 = 1;
pub const IBV_FORK_UNNEEDED: u32 = 2;

// Values of `gid_type` in a GID table row.
pub const IBV_GID_TYPE_IB: u32 = 0;
pub const IBV_GID_TYPE_ROCE_V1: u32 = 1;
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;

// Path MTU codes.
pub const IBV_MTU_256: u32 = 1;
pub const IBV_MTU_512: u32 = 2;
pub const IBV_MTU_1024: u32 = 3;
pub const IBV_MTU_2048: u32 = 4;
pub const IBV_MTU_4096: u32 = 5;

// States of a port.
pub const IBV_PORT_NOP: u32 = 0;
pub const IBV_PORT_DOWN: u32 = 1;
pub const IBV_PORT_INIT: u32 = 2;
pub const IBV_PORT_ARMED: u32 = 3;
pub const IBV_PORT_ACTIVE: u32 = 4;
pub const IBV_PORT_ACTIVE_DEFER: u32 = 5;

// Values of `link_layer`.
pub const IBV_LINK_LAYER_UNSPECIFIED: u32 = 0;
pub const IBV_LINK_LAYER_INFINIBAND: u32 = 1;
pub const IBV_LINK_LAYER_ETHERNET: u32 = 2;

// Bits of `port_cap_flags`.
pub const IBV_PORT_SM: u32 = 1 << 1;
pub const IBV_PORT_NOTICE_SUP: u32 = 1 << 2;
pub const IBV_PORT_TRAP_SUP: u32 = 1 << 3;
pub const IBV_PORT_OPT_IPD_SUP: u32 = 1 << 4;
pub const IBV_PORT_AUTO_MIGR_SUP: u32 = 1 << 5;
pub const IBV_PORT_SL_MAP_SUP: u32 = 1 << 6;
pub const IBV_PORT_MKEY_NVRAM: u32 = 1 << 7;
pub const IBV_PORT_PKEY_NVRAM: u32 = 1 << 8;
pub const IBV_PORT_LED_INFO_SUP: u32 = 1 << 9;
pub const IBV_PORT_SYS_IMAGE_GUID_SUP: u32 = 1 << 11;
pub const IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP: u32 = 1 << 12;
pub const IBV_PORT_EXTENDED_SPEEDS_SUP: u32 = 1 << 14;
pub const IBV_PORT_CAP_MASK2_SUP: u32 = 1 << 15;
pub const IBV_PORT_CM_SUP: u32 = 1 << 16;
pub const IBV_PORT_SNMP_TUNNEL_SUP: u32 = 1 << 17;
pub const IBV_PORT_REINIT_SUP: u32 = 1 << 18;
pub const IBV_PORT_DEVICE_MGMT_SUP: u32 = 1 << 19;
pub const IBV_PORT_VENDOR_CLASS_SUP: u32 = 1 << 20;
pub const IBV_PORT_DR_NOTICE_SUP: u32 = 1 << 21;
pub const IBV_PORT_CAP_MASK_NOTICE_SUP: u32 = 1 << 22;
pub const IBV_PORT_BOOT_MGMT_SUP: u32 = 1 << 23;
pub const IBV_PORT_LINK_LATENCY_SUP: u32 = 1 << 24;
pub const IBV_PORT_CLIENT_REG_SUP: u32 = 1 << 25;
pub const IBV_PORT_IP_BASED_GIDS: u32 = 1 << 26;

// Bits of `port_cap_flags2`.
pub const IBV_PORT_SET_NODE_DESC_SUP: u32 = 1 << 0;
pub const IBV_PORT_INFO_EXT_SUP: u32 = 1 << 1;
pub const IBV_PORT_VIRT_SUP: u32 = 1 << 2;
pub const IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP: u32 = 1 << 3;
pub const IBV_PORT_LINK_WIDTH_2X_SUP: u32 = 1 << 4;
pub const IBV_PORT_LINK_SPEED_HDR_SUP: u32 = 1 << 5;
pub const IBV_PORT_LINK_SPEED_NDR_SUP: u32 = 1 << 10;
