//! Describes the libraries that are built: two drop-ins, and one of our own.

use std::path::PathBuf;

use anyhow::Result;

use crate::library_symbols;
use crate::run_program::root;

/// A library, its crate and its symbol table.
pub(crate) struct Library {
    /// The crate's folder; its `symbols.toml` lists every symbol.
    pub folder: &'static str,
    pub package: &'static str,
    pub soname: &'static str,
    /// What a linker looks for.
    pub plain: &'static str,
    /// Those of `dist/lib` that it is linked with.
    pub beside: &'static [&'static str],
    /// What of it is written in C.
    pub sources: &'static [&'static str],
    /// Where its version script is in a source tree of rdma-core; none if it is our own.
    pub script: Option<&'static str>,
}

const VERBS_SONAME: &str = "libibverbs.so.1";
const CONNECTIONS_SONAME: &str = "librdmacm.so.1";

pub(crate) const VERBS: Library = Library {
    folder: "app/ibverbs",
    package: "omniverb_ibverbs",
    soname: VERBS_SONAME,
    plain: "libibverbs.so",
    beside: &[],
    sources: &["cancellable_event_waits.c"],
    script: Some("libibverbs/libibverbs.map.in"),
};

pub(crate) const CONNECTIONS: Library = Library {
    folder: "app/rdmacm",
    package: "omniverb_rdmacm",
    soname: CONNECTIONS_SONAME,
    plain: "librdmacm.so",
    beside: &[VERBS_SONAME],
    sources: &[],
    script: Some("librdmacm/librdmacm.map"),
};

/// A second API over the two.
pub(crate) const DMA: Library = Library {
    folder: "app/dma",
    package: "omniverb_dma",
    soname: "libomniverb_dma.so.1",
    plain: "libomniverb_dma.so",
    beside: &[VERBS_SONAME, CONNECTIONS_SONAME],
    sources: &[],
    script: None,
};

/// Each after those that it is linked with.
pub(crate) const ALL: [&Library; 3] = [&VERBS, &CONNECTIONS, &DMA];

impl Library {
    /// Its symbol table.
    pub(crate) fn table(&self) -> PathBuf {
        root().join(self.folder).join("symbols.toml")
    }

    /// Where it is when it is built.
    pub(crate) fn built(&self) -> PathBuf {
        folder().join(self.soname)
    }

    /// Where Debian's is.
    pub(crate) fn installed(&self) -> PathBuf {
        PathBuf::from("/usr/lib/x86_64-linux-gnu").join(self.soname)
    }
}

/// Where built libraries are.
pub(crate) fn folder() -> PathBuf {
    root().join("dist/lib")
}

/// Says how large a library of dist/lib is, and what it needs.
pub(crate) fn report(soname: &str) -> Result<()> {
    let built = folder().join(soname);
    let (major, minor) = library_symbols::glibc_floor(&built)?.newest;
    let size = std::fs::metadata(&built)?.len() / 1024;
    println!("dist/lib/{soname}: {size} KiB, needs glibc {major}.{minor}");
    Ok(())
}
