//! The context: an opened device.

use core::mem::offset_of;
use std::sync::{Arc, Mutex};

use omniverb_abi::{VERBS_ABI_IS_EXTENDED, ibv_context, ibv_device, verbs_context};
use omniverb_client::{Client, GidEntry, Notifier};
use omniverb_device::{AsyncEvent, Shared};
use rustix::fd::{AsRawFd, IntoRawFd, OwnedFd};

use super::contexts_of_one_cmd_fd::SharedCommandFile;
use super::object_counts::ObjectCounts;

/// An opened device.
#[repr(C)]
pub(crate) struct ContextShell {
    verbs: verbs_context,
    /// What it shares with contexts that are imported from it, or that it is imported from. Its end
    /// needs the client.
    pub(super) family: Arc<SharedCommandFile>,
    /// The process's session and device.
    pub(crate) client: Arc<Client>,
    /// Asynchronous events not yet fetched: kind, and the object's address.
    pub(super) events: Notifier<(AsyncEvent, usize)>,
    /// The GID table as it was last seen.
    pub(super) gids: Mutex<Vec<GidEntry>>,
    pub(super) counts: Arc<ObjectCounts>,
    /// What `cmd_fd` names, until it is closed: after the family, which would take the end for that
    /// of an importer.
    command_file: Option<OwnedFd>,
}

const CONTEXT_OFFSET: usize = offset_of!(ContextShell, verbs) + offset_of!(verbs_context, context);

impl ContextShell {
    /// An opened device, whose table of operations is empty yet.
    pub(super) fn new(
        client: Arc<Client>,
        events: Notifier<(AsyncEvent, usize)>,
        (family, command_file): (Arc<SharedCommandFile>, OwnedFd),
        device: *mut ibv_device,
    ) -> ContextShell {
        // SAFETY: pointers, optional functions, numbers and a mutex: zero is valid for all.
        let mut verbs: verbs_context = unsafe { core::mem::zeroed() };
        verbs.sz = size_of::<verbs_context>();
        let context = &mut verbs.context;
        context.device = device;
        context.async_fd = events.raw_fd();
        context.cmd_fd = command_file.as_raw_fd();
        context.num_comp_vectors = 1;
        context.abi_compat = VERBS_ABI_IS_EXTENDED as *mut _;
        let gids = Mutex::new(client.gids().unwrap_or_default());
        let command_file = Some(command_file);
        let counts = family.counts.clone();
        ContextShell { verbs, client, events, gids, counts, family, command_file }
    }

    /// Its table of operations.
    pub(super) fn verbs(&mut self) -> &mut verbs_context {
        &mut self.verbs
    }

    /// As C sees it, until [`Self::from_c`].
    pub(super) fn into_c(self: Box<Self>) -> *mut ibv_context {
        Box::into_raw(self).wrapping_byte_add(CONTEXT_OFFSET).cast()
    }

    /// # Safety
    /// `context` came from [`Self::into_c`], and is not used any more.
    pub(super) unsafe fn from_c(context: *mut ibv_context) -> Box<ContextShell> {
        // SAFETY: the caller's promise.
        unsafe { Box::from_raw(context.byte_sub(CONTEXT_OFFSET).cast::<ContextShell>()) }
    }

    /// # Safety
    /// `context` is an open context of ours.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a ContextShell {
        // SAFETY: ours, so it lies at this offset in a live shell.
        unsafe { &*context.byte_sub(CONTEXT_OFFSET).cast::<ContextShell>() }
    }

    /// What all objects of the device share.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.client.shared
    }
}

impl Drop for ContextShell {
    fn drop(&mut self) {
        // A forked child: the number may be in use for something else by now.
        if !self.client.is_ours()
            && let Some(file) = self.command_file.take()
        {
            let _ = file.into_raw_fd();
        }
    }
}
