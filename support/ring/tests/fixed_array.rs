//! Arrays in memory of our own and in memory that is lent.
#![expect(unsafe_code)] // Tests lend memory.

use omniverb_ring::fixed_array::{FixedArray, LENT_ALIGNMENT, Lender, MemoryLender, NoMemory};
use std::alloc::{Layout, alloc, dealloc};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// What a lender is to do when it is asked.
enum Answer {
    Lend,
    Leave,
    Refuse,
}

struct CountingLender {
    answer: Answer,
    lent: Mutex<HashMap<usize, (Layout, NonNull<u8>)>>,
}

// SAFETY: nothing is kept of a pointer that changes what is behind it.
unsafe impl Send for CountingLender {}
// SAFETY: as above.
unsafe impl Sync for CountingLender {}

// SAFETY: memory of the allocator, with no other owner until it is taken back.
unsafe impl Lender for CountingLender {
    fn lend(&self, bytes: usize, alignment: usize) -> Result<Option<NonNull<u8>>, NoMemory> {
        match self.answer {
            Answer::Leave => return Ok(None),
            Answer::Refuse => return Err(NoMemory),
            Answer::Lend => {}
        }
        assert!(bytes > 0 && bytes.is_multiple_of(LENT_ALIGNMENT));
        let layout = Layout::from_size_align(bytes, alignment).unwrap();
        // SAFETY: not of size zero, and as large as it says.
        let memory = NonNull::new(unsafe {
            let memory = alloc(layout);
            memory.write_bytes(0xee, bytes);
            memory
        })
        .unwrap();
        self.lent.lock().unwrap().insert(memory.addr().get(), (layout, memory));
        Ok(Some(memory))
    }

    fn take_back(&self, memory: NonNull<u8>) {
        let lent = self.lent.lock().unwrap().remove(&memory.addr().get());
        let (layout, memory) = lent.expect("what was lent comes back, once");
        // SAFETY: allocated with this layout; the borrower is done.
        unsafe { dealloc(memory.as_ptr(), layout) };
    }
}

fn bank(answer: Answer) -> (Arc<CountingLender>, MemoryLender) {
    let bank = Arc::new(CountingLender { answer, lent: Mutex::default() });
    (bank.clone(), Some(bank))
}

fn count(bank: &CountingLender) -> usize {
    bank.lent.lock().unwrap().len()
}

/// Elements begin as zeroes and keep what is written.
fn works(array: &mut FixedArray<u64>, length: usize) {
    assert_eq!(array.len(), length);
    assert!(array.iter().all(|element| *element == 0));
    for (at, element) in array.iter_mut().enumerate() {
        *element = at as u64;
    }
    assert!(array.iter().enumerate().all(|(at, element)| *element == at as u64));
}

#[test]
fn lent_memory_is_used_and_comes_back() {
    let (bank, lending) = bank(Answer::Lend);
    for length in [1, 7, 8, 9, 100] {
        let mut array = FixedArray::new(length, &lending).unwrap();
        works(&mut array, length);
        let inside = array.as_ptr().addr();
        let (layout, _) = bank.lent.lock().unwrap()[&inside];
        assert_eq!(layout.size(), (8 * length).next_multiple_of(LENT_ALIGNMENT));
        assert_eq!((layout.align(), count(&bank)), (LENT_ALIGNMENT, 1));
        drop(array);
        assert_eq!(count(&bank), 0);
    }
}

#[test]
fn a_null_pointer_gets_nothing_back() {
    let (bank, lending) = bank(Answer::Leave);
    works(&mut FixedArray::new(20, &lending).unwrap(), 20);
    works(&mut FixedArray::new(20, &None).unwrap(), 20);
    works(&mut FixedArray::own(20), 20);
    assert_eq!(count(&bank), 0);
}

#[test]
fn an_array_without_memory_is_refused() {
    let (_, lending) = bank(Answer::Refuse);
    assert_eq!(FixedArray::<u64>::new(20, &lending).err(), Some(NoMemory));
}

#[test]
fn an_empty_array_has_no_owner() {
    let (_, lending) = bank(Answer::Refuse);
    works(&mut FixedArray::new(0, &lending).unwrap(), 0);
    works(&mut FixedArray::default(), 0);
}

#[test]
fn any_thread_may_end_it() {
    let (bank, lending) = bank(Answer::Lend);
    let mut array = FixedArray::<u64>::new(16, &lending).unwrap();
    std::thread::spawn(move || works(&mut array, 16)).join().unwrap();
    assert_eq!(count(&bank), 0);
}
