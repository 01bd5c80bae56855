/* Reads a LUN byte for byte, writes the second half anew and reads all of it again. Each word of it
 * is known by its place; in what was written all bits are the other way round. */
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { PART = 1 << 16 }; /* bytes that are asked for at a time */

static struct iscsi_context *session;
static int lun;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, iscsi_get_error(session));
    exit(1);
}

static uint32_t word(uint64_t place, uint64_t written)
{
    uint32_t number = (uint32_t)(place * 2654435761u);
    return place * 4 >= written ? ~number : number;
}

static void compare(uint64_t bytes, uint32_t block, uint64_t written)
{
    for (uint64_t at = 0; at < bytes; at += PART) {
        struct scsi_task *task =
            iscsi_read10_sync(session, lun, at / block, PART, block, 0, 0, 0, 0, 0);
        if (!task || task->status != SCSI_STATUS_GOOD || task->datain.size != PART)
            fail("read");
        const uint32_t *words = (const uint32_t *)task->datain.data;
        for (uint64_t i = 0; i < PART / 4; i++) {
            if (words[i] != word(at / 4 + i, written)) {
                fprintf(stderr, "byte %llu differs\n", (unsigned long long)(at + i * 4));
                exit(1);
            }
        }
        scsi_free_scsi_task(task);
    }
}

static void write_from(uint64_t from, uint64_t bytes, uint32_t block)
{
    static uint32_t words[PART / 4];
    for (uint64_t at = from; at < bytes; at += PART) {
        for (uint64_t i = 0; i < PART / 4; i++)
            words[i] = word(at / 4 + i, from);
        struct scsi_task *task = iscsi_write10_sync(
            session, lun, at / block, (unsigned char *)words, PART, block, 0, 0, 0, 0, 0);
        if (!task || task->status != SCSI_STATUS_GOOD)
            fail("write");
        scsi_free_scsi_task(task);
    }
}

int main(int count, char **arguments)
{
    session = iscsi_create_context("iqn.2026-11.test:initiator");
    struct iscsi_url *url = iscsi_parse_full_url(session, count > 1 ? arguments[1] : "");
    if (!url)
        fail("url");
    lun = url->lun;
    iscsi_set_session_type(session, ISCSI_SESSION_NORMAL);
    iscsi_set_header_digest(session, ISCSI_HEADER_DIGEST_NONE);
    if (iscsi_full_connect_sync(session, url->portal, lun))
        fail("connect");
    struct scsi_task *task = iscsi_readcapacity10_sync(session, lun, 0, 0);
    struct scsi_readcapacity10 *capacity = task ? scsi_datain_unmarshall(task) : NULL;
    if (!capacity)
        fail("capacity");
    uint32_t block = capacity->block_size;
    uint64_t bytes = ((uint64_t)capacity->lba + 1) * block;
    compare(bytes, block, bytes);
    write_from(bytes / 2, bytes, block);
    compare(bytes, block, bytes / 2);
    printf("%llu bytes are right\n", (unsigned long long)bytes);
    iscsi_logout_sync(session);
    iscsi_destroy_context(session);
    return 0;
}
