/* A libibverbs as a wheel brings it along under another name: it finds no device, and it has a
 * private function that wheel_module.c needs. */
#include <stdlib.h>

struct ibv_device;

struct ibv_device **ibv_get_device_list(int *count)
{
    *count = 0;
    return calloc(1, sizeof(struct ibv_device *));
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
    (void)device;
    return "a device of the copy";
}

int verbs_private_number(void)
{
    return 48;
}
