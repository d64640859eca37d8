/* store.c - what all stores share. */
#include "node/store.h"

#include <unistd.h>

void store_item_fini(struct store_item *item)
{
    buf_fini(&item->record);
    value_fini(&item->value);
    if (item->fd >= 0)
        close(item->fd);
    *item = STORE_ITEM_NONE;
}
