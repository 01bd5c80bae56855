//! Encodes a path in a REQ: primary and alternate look alike (12.6.5).

use crate::big_endian_fields::Fields;
use omniverb_terms::Gid;

/// One path. LIDs mean nothing on RoCE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// The sender's LID.
    pub local_lid: u16,
    /// The receiver's LID; the alternate path is absent if it is zero.
    pub remote_lid: u16,
    /// The sender's GID.
    pub local_gid: Gid,
    /// The receiver's GID.
    pub remote_gid: Gid,
    /// Flow label, 20 bits; it decides the UDP source port of the connection.
    pub flow_label: u32,
    /// Static rate, 6 bits, as `enum ibv_rate`.
    pub rate: u8,
    /// Traffic class of the packets.
    pub traffic_class: u8,
    /// Hop limit of the packets.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Whether both ends are in one subnet.
    pub is_subnet_local: bool,
    /// Local ACK timeout, 5 bits: 4.096 us times two to this.
    pub ack_timeout: u8,
}

impl Path {
    pub(crate) fn read(fields: &Fields, at: usize) -> Path {
        let label = fields.u32(at + 36);
        Path {
            local_lid: fields.u16(at),
            remote_lid: fields.u16(at + 2),
            local_gid: Gid::new(fields.array(at + 4)),
            remote_gid: Gid::new(fields.array(at + 20)),
            flow_label: label >> 12,
            rate: label as u8 & 0x3f,
            traffic_class: fields.u8(at + 40),
            hop_limit: fields.u8(at + 41),
            service_level: fields.u8(at + 42) >> 4,
            is_subnet_local: fields.u8(at + 42) & 8 != 0,
            ack_timeout: fields.u8(at + 43) >> 3,
        }
    }

    pub(crate) fn write(&self, fields: &mut Fields, at: usize) {
        fields.set_u16(at, self.local_lid);
        fields.set_u16(at + 2, self.remote_lid);
        fields.set(at + 4, self.local_gid.bytes());
        fields.set(at + 20, self.remote_gid.bytes());
        fields.set_u32(at + 36, self.flow_label << 12 | u32::from(self.rate & 0x3f));
        fields.set_u8(at + 40, self.traffic_class);
        fields.set_u8(at + 41, self.hop_limit);
        fields.set_u8(at + 42, self.service_level << 4 | u8::from(self.is_subnet_local) << 3);
        fields.set_u8(at + 43, self.ack_timeout << 3);
    }
}
