/* Floods UDP ports, with nothing but sockets. */
#include "common.h"

#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#define BATCH 32
#define BYTES 256

/* Random bytes; says when it has begun. Arguments: IPv4 address, seconds, packets a second, whether
 * they look like RoCE (1) or not (0), and the port. */
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
        if (n > 0 && !sent) {
            puts("begun");
            fflush(stdout);
        }
        sent += n > 0 ? (uint64_t)n : 0;
        uint64_t due = start + sent * 1000000000u / rate, now = now_ns();
        if (n < 0 || due > now)
            usleep(n < 0 ? 1000 : (unsigned)((due - now) / 1000));
    }
    printf("%" PRIu64 " packets\n", sent);
}

#define TEMPLATES 4096
#define WHOLE_PACKET 65536

static int socket_for(unsigned port, int family)
{
    if (port == WHOLE_PACKET) {
        int raw = socket(family, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
        check(raw >= 0, "raw socket: %m");
        return raw;
    }
    check(family == AF_INET, "datagrams of IPv6 are whole packets");
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    check(s >= 0, "socket: %m");
    /* Packets without an identification, as those of RoCE: it is part of their checksum. */
    int forbid = IP_PMTUDISC_DO;
    check(!setsockopt(s, IPPROTO_IP, IP_MTU_DISCOVER, &forbid, sizeof forbid), "%m");
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    check(!bind(s, (void *)&own, sizeof own), "bind to %u: %m", port);
    return s;
}

/* Payloads that standard input has, over and over, as fast as allowed. A line of standard input:
 * IP address, port of the sender (0: any; 65536: a whole IP packet), payload in hexadecimal; an
 * empty one ends them. Datagrams of IPv6 are whole packets.
 * Arguments: packets a second in all. Goes on until standard input ends; then it prints how many it
 * sent and for how many ms. */
static unsigned read_payloads(struct mmsghdr *messages, int *sockets)
{
    static unsigned char bytes[TEMPLATES][512];
    static union {
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } to[TEMPLATES];
    static struct iovec parts[TEMPLATES];
    char line[2048], address[64], hex[1200];
    unsigned count = 0, port;
    int known = -1, known_family = 0;
    unsigned known_port = 0;
    while (fgets(line, sizeof line, stdin) && line[0] != '\n') {
        check(count < TEMPLATES, "too many payloads");
        check(sscanf(line, "%63s %u %1199s", address, &port, hex) == 3, "payload: %s", line);
        int family = strchr(address, ':') ? AF_INET6 : AF_INET;
        if (family == AF_INET) {
            to[count].four = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(4791)};
            check(inet_aton(address, &to[count].four.sin_addr), "an IPv4 address");
        } else {
            to[count].six = (struct sockaddr_in6){.sin6_family = AF_INET6};
            check(inet_pton(AF_INET6, address, &to[count].six.sin6_addr), "an IPv6 address");
        }
        size_t length = strlen(hex) / 2;
        check(length <= sizeof bytes[0], "%zu bytes are too many", length);
        for (size_t i = 0; i < length; i++)
            check(sscanf(hex + 2 * i, "%2hhx", &bytes[count][i]) == 1, "hexadecimal");
        parts[count] = (struct iovec){bytes[count], length};
        messages[count].msg_hdr = (struct msghdr){.msg_name = &to[count],
                                                  .msg_namelen = family == AF_INET
                                                                     ? sizeof to[count].four
                                                                     : sizeof to[count].six,
                                                  .msg_iov = &parts[count], .msg_iovlen = 1};
        if (known < 0 || port != known_port || family != known_family) {
            known = socket_for(port, family);
            known_port = port;
            known_family = family;
        }
        sockets[count++] = known;
    }
    check(count, "no payloads");
    return count;
}

TEST(payloads)
{
    static struct mmsghdr messages[TEMPLATES];
    static int sockets[TEMPLATES];
    setvbuf(stdin, NULL, _IONBF, 0);
    uint64_t rate = argument(0, 100000);
    unsigned count = read_payloads(messages, sockets), at = 0;
    uint64_t start = now_ns(), sent = 0;
    struct pollfd end = {.fd = 0, .events = POLLIN};
    while (poll(&end, 1, 0) == 0) {
        for (unsigned batch = 0; batch < 8; batch++) {
            unsigned most = count - at < 64 ? count - at : 64, same = 1;
            while (same < most && sockets[at + same] == sockets[at])
                same++;
            int n = sendmmsg(sockets[at], messages + at, same, 0);
            sent += n > 0 ? (uint64_t)n : 0;
            at = (at + same) % count;
        }
        uint64_t due = start + sent * 1000000000u / rate, now = now_ns();
        if (due > now + 50000)
            usleep((unsigned)((due - now) / 1000));
    }
    printf("%" PRIu64 " packets %" PRIu64 " ms\n", sent, (now_ns() - start) / 1000000);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
