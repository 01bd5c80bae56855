/* The Ethernet addresses behind address vectors: our own, those of groups, and who the kernel sends
 * packets for the second process to, which with TEST_PEERS is elsewhere. */
#include "common.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static struct device d;

static struct ibv_ah_attr way_to(union ibv_gid gid)
{
    return (struct ibv_ah_attr){.is_global = 1, .port_num = 1,
                                .grh = {.dgid = gid, .sgid_index = (uint8_t)d.gid_index}};
}

static void is(const uint8_t *mac, const uint8_t *expected)
{
    check(!memcmp(mac, expected, 6), "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2],
          mac[3], mac[4], mac[5]);
}

/* The interface of our GID, by its name, and its own address. */
static struct ifreq interface(void)
{
    struct ibv_gid_entry entry;
    same(ibv_query_gid_ex(d.context, 1, (uint32_t)d.gid_index, &entry, 0), 0);
    struct ifreq found = {0};
    check(if_indextoname(entry.ndev_ifindex, found.ifr_name), "no interface: %m");
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    check(any >= 0 && !ioctl(any, SIOCGIFHWADDR, &found), "SIOCGIFHWADDR: %m");
    close(any);
    return found;
}

TEST(our_own_and_groups)
{
    device_open(&d);
    uint8_t mac[6];
    uint16_t vlan = 7;
    struct ibv_ah_attr a = way_to(d.gid);
    same(ibv_resolve_eth_l2_from_gid(d.context, &a, mac, &vlan), 0);
    struct ifreq ours = interface();
    is(mac, (uint8_t *)ours.ifr_hwaddr.sa_data);
    same(vlan, 0xffff);
    union ibv_gid four = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 239, 0x81, 2, 3}};
    union ibv_gid other = {.raw = {0xff, 0x0e, [10] = 0xff, [11] = 0xff, [12] = 239, 0x81, 2, 3}};
    union ibv_gid six = {.raw = {0xff, 2, [12] = 1, 2, 3, 4}};
    const struct { union ibv_gid gid; uint8_t mac[6]; } groups[] = {
        {four, {1, 0, 0x5e, 1, 2, 3}}, {other, {1, 0, 0x5e, 1, 2, 3}},
        {six, {0x33, 0x33, 1, 2, 3, 4}},
    };
    for (unsigned i = 0; i < 3; i++) {
        a = way_to(groups[i].gid);
        same(ibv_resolve_eth_l2_from_gid(d.context, &a, mac, NULL), 0);
        is(mac, groups[i].mac);
    }
    a.grh.sgid_index = 200;
    same(ibv_resolve_eth_l2_from_gid(d.context, &a, mac, NULL), -EINVAL);
    a = way_to(d.gid);
    a.port_num = 2;
    same(ibv_resolve_eth_l2_from_gid(d.context, &a, mac, NULL), -EINVAL);
    /* Nobody's, and no way leads there. */
    a = way_to((union ibv_gid){.raw = {[10] = 0xff, [11] = 0xff, [12] = 0, 1, 2, 3}});
    same(ibv_resolve_eth_l2_from_gid(d.context, &a, mac, NULL), -EHOSTUNREACH);
}

static void found(int socket)
{
    device_open(&d);
    put(socket, &d.gid, sizeof d.gid);
    meet(socket);
}

/* Whether the kernel has this address of a neighbour by that interface. */
static bool is_known(const uint8_t *mac, const char *name)
{
    char line[200], wanted[40];
    snprintf(wanted, sizeof wanted, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3],
             mac[4], mac[5]);
    FILE *table = fopen("/proc/net/arp", "r");
    check(table, "/proc/net/arp: %m");
    bool known = false;
    while (fgets(line, sizeof line, table))
        known |= strstr(line, wanted) && strstr(line, name);
    fclose(table);
    return known;
}

TEST(neighbour)
{
    pid_t pid;
    int socket = spawn(found, &pid);
    device_open(&d);
    union ibv_gid theirs;
    get(socket, &theirs, sizeof theirs);
    uint8_t mac[6];
    struct ibv_ah_attr a = way_to(theirs);
    same(ibv_resolve_eth_l2_from_gid(d.context, &a, mac, NULL), 0);
    struct ifreq ours = interface();
    if (memcmp(theirs.raw, d.gid.raw, 16))
        check(is_known(mac, ours.ifr_name), "the kernel knows nobody of that address");
    else
        is(mac, (uint8_t *)ours.ifr_hwaddr.sa_data);
    meet(socket);
    reap(pid);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
