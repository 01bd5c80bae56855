//! Reads how many mappings the kernel allows this process.

/// The kernel's default, also taken if the file cannot be read.
const DEFAULT: usize = 65530;

/// `vm.max_map_count`, as it is now.
pub(crate) fn allowed() -> usize {
    std::fs::read_to_string("/proc/sys/vm/max_map_count").map_or(DEFAULT, |text| number(&text))
}

fn number(text: &str) -> usize {
    text.trim().parse().unwrap_or(DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_limit_is_one_number_in_a_line() {
        assert_eq!((number("262144\n"), number("0\n")), (262_144, 0));
        assert_eq!((number(""), number("-1\n"), number("many")), (DEFAULT, DEFAULT, DEFAULT));
        assert!(allowed() > 0);
    }
}
