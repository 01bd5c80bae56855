// Requests and answers of event_loops.c: a length of four bytes and so many bytes, which come back
// in upper case.
#pragma once
#include <arpa/inet.h>
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS 40
#define WINDOW 4

struct bytes {
    char *data;
    size_t from, to, room;
};

// A connection, the listener, or what wakes the loop.
struct end {
    enum { CONNECTION, LISTENER, WAKER } is;
    int fd, over;
    struct bytes in, out;
    // A client's: its number, what it has sent and had answered, what was wrong.
    int asks, number, sent, answered, wrong, shut, open;
    uint32_t wants;
    // Completions: what is under way.
    int receiving, sending;
    char received[16384], send[16384];
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void add(struct bytes *bytes, const char *data, size_t size)
{
    if (bytes->from == bytes->to)
        bytes->from = bytes->to = 0;
    if (bytes->to + size > bytes->room) {
        bytes->room = 2 * (bytes->to + size);
        bytes->data = realloc(bytes->data, bytes->room);
        if (!bytes->data)
            fail("realloc");
    }
    memcpy(bytes->data + bytes->to, data, size);
    bytes->to += size;
}

static size_t size_of(int number)
{
    static const size_t SIZES[] = {0, 1, 700, 5000, 3, 70000};
    return SIZES[number % 6];
}

static char byte_of(int number, size_t at)
{
    return 'a' + (at * 7 + number) % 26;
}

static void ask_more(struct end *end)
{
    while (end->sent < REQUESTS && end->sent < end->answered + WINDOW) {
        uint32_t head = htonl(size_of(end->sent));
        add(&end->out, (char *)&head, 4);
        for (size_t at = 0; at < size_of(end->sent); at++) {
            char byte = byte_of(end->sent, at);
            add(&end->out, &byte, 1);
        }
        end->sent++;
    }
}

// What came: a server answers, a client compares.
static void frames(struct end *end)
{
    struct bytes *in = &end->in;
    uint32_t head;
    while (in->to - in->from >= 4) {
        memcpy(&head, in->data + in->from, 4);
        size_t size = ntohl(head);
        if (in->to - in->from < 4 + size)
            break;
        char *data = in->data + in->from + 4;
        if (end->asks) {
            int same = size == size_of(end->answered);
            for (size_t at = 0; same && at < size; at++)
                same = data[at] == toupper(byte_of(end->answered, at));
            end->wrong += !same;
            end->answered++;
        } else {
            for (size_t at = 0; at < size; at++)
                data[at] = toupper(data[at]);
            add(&end->out, data - 4, size + 4);
        }
        in->from += 4 + size;
    }
    if (end->asks)
        ask_more(end);
}
