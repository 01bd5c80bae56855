//! Identifies this boot of the kernel.

/// Where the kernel says so.
const FILE: &str = "/proc/sys/kernel/random/boot_id";

/// 16 bytes that the kernel draws at random when it is booted; `None` if it does not say.
pub(super) fn id() -> Option<[u8; 16]> {
    read(&std::fs::read_to_string(FILE).ok()?)
}

/// From the text of a UUID.
fn read(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|letter| *letter != '-').collect();
    let sound = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| sound)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_has_one_id() {
        let found = id().unwrap();
        assert_ne!(found, [0; 16]);
        assert_eq!(id(), Some(found));
    }

    #[test]
    fn a_malformed_uuid_is_no_boot_id() {
        let bytes = read("00010203-0405-0607-0809-0a0b0c0d0eff\n").unwrap();
        assert_eq!((bytes[1], bytes[15]), (1, 0xff));
        for wrong in ["", "0001", "+0010203-0405-0607-0809-0a0b0c0d0eff", "0001020304050607080g"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
