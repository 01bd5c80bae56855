/* What a wheel has besides: a library that was linked with the copy, or with nothing. */
struct ibv_device;
#ifdef PLAIN
const char *first_device(void)
{
    return "nothing";
}

int private_number(void)
{
    return 0;
}
#else
struct ibv_device **ibv_get_device_list(int *count);
const char *ibv_get_device_name(struct ibv_device *device);
int verbs_private_number(void);

const char *first_device(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);

    return list && count > 0 ? ibv_get_device_name(list[0]) : "no device";
}

int private_number(void)
{
    return verbs_private_number();
}
#endif
