//! Finds the functions that calls go to: those of the next library that has the name.
//!
//! Each exported name has a *slot*, from which its entry point jumps. Until it is filled it leads
//! to [`ov_sockets_find`], which fills all. That happens at the start of the program, or when
//! another library's constructor, or an allocator that one of them calls, is earlier. It reads the
//! symbol tables of the loaded libraries by itself: `dlsym` allocates when it finds nothing.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A name, its slot, and what the slot holds until it is filled.
#[repr(C)]
struct Row {
    name: *const c_char,
    slot: &'static AtomicPtr<c_void>,
    late: *mut c_void,
}

unsafe extern "C" {
    static ov_sockets_rows: [Row; 0];
    static ov_sockets_rows_end: [Row; 0];
}

fn rows() -> &'static [Row] {
    let (first, end) = (&raw const ov_sockets_rows, &raw const ov_sockets_rows_end);
    let bytes = end as usize - first as usize;
    // SAFETY: the entry points' table is between the two.
    unsafe { core::slice::from_raw_parts(first.cast(), bytes / size_of::<Row>()) }
}

impl Row {
    fn is_filled(&self) -> bool {
        self.slot.load(Ordering::Relaxed) != self.late
    }

    fn name(&self) -> &CStr {
        // SAFETY: a string of the entry points' table.
        unsafe { CStr::from_ptr(self.name) }
    }
}

/// Fills all slots that the loaded libraries have something for. Each thread that does so gets the
/// same.
#[unsafe(no_mangle)]
pub extern "C" fn ov_sockets_find() {
    let mut walk = Walk { is_behind_us: false };
    // SAFETY: the function takes what is given to it for what it is.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut walk).cast()) };
}

/// At the start, when the C library may allocate: what was not found its own way, if at all.
pub(crate) fn finish() {
    ov_sockets_find();
    for row in rows().iter().filter(|row| !row.is_filled()) {
        let found = symbol(row.name(), Search::Behind);
        let found = if found.is_null() { missing as *mut c_void } else { found };
        row.slot.store(found, Ordering::Relaxed);
    }
    let single = symbol(c"__libc_single_threaded", Search::All);
    SINGLE_THREADED.store(single.cast(), Ordering::Relaxed);
}

/// Where a symbol is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// In all libraries, from the program on.
    All,
    /// In those behind this library.
    Behind,
}

/// What the loader knows by a name; null: nothing.
pub(crate) fn symbol(name: &CStr, search: Search) -> *mut c_void {
    let handle = if search == Search::All { libc::RTLD_DEFAULT } else { libc::RTLD_NEXT };
    // SAFETY: a string, and the caller is in this library.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// A byte of the C library's, which is not 0 while it has made no thread; null before glibc 2.32.
static SINGLE_THREADED: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// The C library has made no thread so far, for all that is known.
pub(crate) fn is_single_threaded() -> bool {
    let word = SINGLE_THREADED.load(Ordering::Relaxed);
    // SAFETY: the C library's own variable, which stays.
    !word.is_null() && unsafe { word.read_volatile() } != 0
}

/// What an older C library does not have, a program asked for by the name that we have.
extern "C" fn missing() -> c_int {
    crate::errno::set_errno(libc::ENOSYS);
    -1
}

struct Walk {
    is_behind_us: bool,
}

unsafe extern "C" fn visit(of: *mut libc::dl_phdr_info, _: usize, walk: *mut c_void) -> c_int {
    // SAFETY: the loader's own description, and what was given to it with this function.
    let (of, walk) = unsafe { (&*of, &mut *walk.cast::<Walk>()) };
    if !walk.is_behind_us {
        walk.is_behind_us = has(of, rows().as_ptr() as usize);
        return 0;
    }
    let Some(symbols) = Symbols::of(of) else { return 0 };
    for row in rows().iter().filter(|row| !row.is_filled()) {
        if let Some(found) = symbols.find(row.name()) {
            row.slot.store(found, Ordering::Relaxed);
        }
    }
    c_int::from(rows().iter().all(Row::is_filled))
}

fn headers(of: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the loader says where they are and how many.
    unsafe { core::slice::from_raw_parts(of.dlpi_phdr, usize::from(of.dlpi_phnum)) }
}

/// The address is in one of the library's segments.
fn has(of: &libc::dl_phdr_info, address: usize) -> bool {
    headers(of).iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
        let begin = (of.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        (begin..begin + header.p_memsz as usize).contains(&address)
    })
}

/// What a symbol is: a function that is defined, for others, in its default version.
const SHN_UNDEF: u16 = 0;
const STT_FUNC: u8 = 2;
const HIDDEN_VERSION: u16 = 0x8000;

/// Entries of the dynamic section.
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;

/// A table of a loaded library, from its first entry on.
#[derive(Clone, Copy)]
struct Table<T>(*const T);

impl<T: Copy> Table<T> {
    /// What a library has at an address that the loader, or the library itself, says.
    fn at(address: usize) -> Self {
        Self(core::ptr::with_exposed_provenance(address))
    }

    /// Entries are asked for by indexes that the library's own tables have.
    fn get(self, index: usize) -> T {
        // SAFETY: it is there, unless the library contradicts itself, which the loader would not
        // survive either.
        unsafe { self.0.add(index).read_unaligned() }
    }

    /// A table behind so many entries of this one.
    fn behind<U>(self, entries: usize) -> Table<U> {
        Table(self.0.wrapping_add(entries).cast())
    }
}

/// The symbols that a library exports, with GNU's hash table of them: four words, a filter of
/// longs, buckets, and from the first symbol in it on a word for each, the last of a bucket odd.
struct Symbols {
    base: usize,
    hash: Table<u32>,
    symbols: Table<libc::Elf64_Sym>,
    names: Table<u8>,
    versions: Option<Table<u16>>,
}

impl Symbols {
    fn of(of: &libc::dl_phdr_info) -> Option<Symbols> {
        let base = of.dlpi_addr as usize;
        let dynamic = headers(of).iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let entries = Table::<[i64; 2]>::at(base.wrapping_add(dynamic.p_vaddr as usize));
        let (mut hash, mut symbols, mut names, mut versions) = (0, 0, 0, 0);
        // It ends with a zero.
        let entries = (0..).map(|index| entries.get(index)).take_while(|[tag, _]| *tag != 0);
        for [tag, value] in entries {
            match tag {
                DT_GNU_HASH => hash = value as usize,
                DT_SYMTAB => symbols = value as usize,
                DT_STRTAB => names = value as usize,
                DT_VERSYM => versions = value as usize,
                _ => {}
            }
        }
        if hash == 0 || symbols == 0 || names == 0 {
            return None;
        }
        // The loader has added the base, but for what it did not load itself (the vDSO).
        let at = |value: usize| if value < base { value + base } else { value };
        Some(Symbols {
            base,
            hash: Table::at(at(hash)),
            symbols: Table::at(at(symbols)),
            names: Table::at(at(names)),
            versions: (versions != 0).then(|| Table::at(at(versions))),
        })
    }

    /// The function of this name.
    fn find(&self, name: &CStr) -> Option<*mut c_void> {
        let wanted = name
            .to_bytes()
            .iter()
            .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        let [buckets, first, filters, shift] = self.hash.behind::<[u32; 4]>(0).get(0);
        let filter = self.hash.behind::<u64>(4);
        let word = filter.get((wanted / 64 % filters) as usize);
        if word >> (wanted % 64) & word >> ((wanted >> shift) % 64) & 1 == 0 {
            return None;
        }
        let bucket = filter.behind::<u32>(filters as usize);
        let chain = bucket.behind::<u32>(buckets as usize);
        let mut index = bucket.get((wanted % buckets) as usize);
        if index < first {
            return None;
        }
        loop {
            let hash = chain.get((index - first) as usize);
            if hash | 1 == wanted | 1
                && let Some(found) = self.function(index as usize, name)
            {
                return Some(found);
            }
            if hash & 1 != 0 {
                return None;
            }
            index += 1;
        }
    }

    /// The symbol of this index, if it is the one.
    fn function(&self, index: usize, name: &CStr) -> Option<*mut c_void> {
        let symbol = self.symbols.get(index);
        let version = self.versions.map_or(1, |versions| versions.get(index));
        let its_name = self.names.behind::<u8>(symbol.st_name as usize);
        let mut bytes = name.to_bytes_with_nul().iter().enumerate();
        let is_one = symbol.st_shndx != SHN_UNDEF
            && symbol.st_info & 0xf == STT_FUNC
            && version & HIDDEN_VERSION == 0
            && version != 0
            && bytes.all(|(at, byte)| its_name.get(at) == *byte);
        is_one.then(|| self.base.wrapping_add(symbol.st_value as usize) as *mut c_void)
    }
}
