//! Turns Rust layouts into C assertions and runs the C compiler over them.

use std::path::PathBuf;
use std::process::Command;

/// Sizes and offsets of structs, as C assertions. The pattern makes the list exhaustive: a field
/// that is missing here does not compile.
macro_rules! c_layout {
    ($($rust:ident = $c:literal { $($field:ident $(= $c_field:literal)?),* $(,)? })*) => {{
        let mut out = String::new();
        $(
            let _all_fields = |value: &$rust| {
                let $rust { $($field: _),* } = value;
            };
            writeln!(out, "SIZE({}, {});", $c, size_of::<$rust>()).unwrap();
            $(
                #[allow(unused_mut, unused_assignments, reason = "not every field is renamed")]
                {
                    let mut name = stringify!($field).trim_start_matches("r#");
                    $(name = $c_field;)?
                    writeln!(out, "AT({}, {}, {});", $c, name, offset_of!($rust, $field)).unwrap();
                }
            )*
        )*
        out
    }};
}

const PRELUDE: &str = r#"
#include <stddef.h>
#include <infiniband/verbs.h>
#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_cma.h>
#define SIZE(type, n) _Static_assert(sizeof(type) == (n), "sizeof " #type)
#define AT(type, field, n) _Static_assert(offsetof(type, field) == (n), #type "." #field)
#define SLOT(field, n) _Static_assert((long)offsetof(struct verbs_context, field) - \
    (long)offsetof(struct verbs_context, context) == (n), "slot " #field)
#define IS(name, n) _Static_assert((long long)(name) == (long long)(n), #name)
"#;

/// Runs the C compiler over `body`; its complaint, if it has one.
pub(crate) fn compile(name: &str, body: &str) -> Result<(), String> {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.c"));
    std::fs::write(&path, format!("{PRELUDE}{body}")).expect("write the C file");
    let output = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Werror", "-fsyntax-only"])
        .arg(&path)
        .output()
        .expect("run cc");
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !text.contains("infiniband/verbs.h: No such file"),
        "the C headers are missing: install libibverbs-dev"
    );
    assert!(
        !text.contains("rdma/rdma_cma.h: No such file"),
        "the C headers are missing: install librdmacm-dev"
    );
    Err(text)
}
