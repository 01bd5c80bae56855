// The loop of event_loops.c whose accepts, receives and sends are entries of an io_uring.
#pragma once

enum { ACCEPT, RECEIVE, SEND };

static void under_way(struct loop *loop, struct end *end)
{
    struct io_uring_sqe *entry;
    size_t size = end->out.to - end->out.from;
    if (!end->receiving && !end->over) {
        entry = ring_entry(&loop->ring, IORING_OP_RECV, end->fd, (uintptr_t)end | RECEIVE);
        entry->addr = (uintptr_t)end->received;
        entry->len = sizeof end->received;
        end->receiving = 1;
    }
    if (!end->sending && size && end->over >= 0) {
        if (size > sizeof end->send)
            size = sizeof end->send;
        memcpy(end->send, end->out.data + end->out.from, size);
        entry = ring_entry(&loop->ring, IORING_OP_SEND, end->fd, (uintptr_t)end | SEND);
        entry->addr = (uintptr_t)end->send;
        entry->len = size;
        entry->msg_flags = MSG_NOSIGNAL;
        end->sending = 1;
    }
    if (!end->receiving && !end->sending && is_over(loop, end))
        finished(loop, end);
    else
        is_over(loop, end);
}

static void accept_next(struct loop *loop)
{
    struct io_uring_sqe *entry = ring_entry(&loop->ring, IORING_OP_ACCEPT, loop->listener.fd,
                                            (uintptr_t)&loop->listener | ACCEPT);
    entry->accept_flags = SOCK_CLOEXEC;
}

static void complete(struct loop *loop)
{
    while (loop->left) {
        if (ring_enter(&loop->ring, 1) < 0 && errno != EINTR)
            fail("io_uring_enter");
        for (struct io_uring_cqe done; loop->left && ring_take(&loop->ring, &done);) {
            struct end *end = (struct end *)(uintptr_t)(done.user_data & ~7ull);
            if (end->is == LISTENER) {
                if (done.res >= 0)
                    under_way(loop, new_end(done.res, 0));
                accept_next(loop);
                continue;
            }
            if ((done.user_data & 7) == RECEIVE) {
                end->receiving = 0;
                if (done.res > 0) {
                    add(&end->in, end->received, done.res);
                    frames(end);
                } else {
                    end->over = done.res ? -1 : 1;
                }
            } else {
                end->sending = 0;
                if (done.res > 0)
                    end->out.from += done.res;
                else
                    end->over = -1;
            }
            under_way(loop, end);
        }
    }
}
