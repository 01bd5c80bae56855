/* Floods a UDP port of an address, with nothing but sockets. Arguments: IPv4 address, seconds,
 * packets a second, whether they look like RoCE (1) or are random bytes (0), and the port. */
#include "common.h"

#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define BATCH 32
#define BYTES 256

TEST(datagrams)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)argument(4, 4791))};
    check(arguments_count >= 1 && inet_aton(arguments[0], &to.sin_addr), "an IPv4 address");
    uint64_t seconds = argument(1, 5), rate = argument(2, 50000), alike = argument(3, 1);
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    check(s >= 0, "socket: %m");
    static unsigned char bytes[BATCH][BYTES];
    struct iovec parts[BATCH];
    struct mmsghdr messages[BATCH];
    struct random r = {1};
    memset(messages, 0, sizeof messages);
    for (unsigned i = 0; i < BATCH; i++) {
        parts[i] = (struct iovec){bytes[i], BYTES};
        messages[i].msg_hdr = (struct msghdr){.msg_name = &to, .msg_namelen = sizeof to,
                                              .msg_iov = &parts[i], .msg_iovlen = 1};
    }
    uint64_t start = now_ns(), sent = 0;
    while (now_ns() - start < seconds * 1000000000u) {
        for (unsigned i = 0; i < BATCH; i++) {
            fill(bytes[i], BYTES, random_next(&r));
            if (alike) { /* a SEND to some queue pair */
                uint32_t head = htobe32(0x0440ffff);
                uint32_t qpn = htobe32((uint32_t)random_below(&r, 1 << 13));
                memcpy(bytes[i], &head, 4);
                memcpy(bytes[i] + 4, &qpn, 4);
            }
        }
        int n = sendmmsg(s, messages, BATCH, 0);
        sent += n > 0 ? (uint64_t)n : 0;
        uint64_t due = start + sent * 1000000000u / rate, now = now_ns();
        if (n < 0 || due > now)
            usleep(n < 0 ? 1000 : (unsigned)((due - now) / 1000));
    }
    printf("%" PRIu64 " packets\n", sent);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
