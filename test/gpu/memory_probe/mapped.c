// mapped.c - physical memory at addresses of our own, as a swap takes it away and brings it back.
#include <stdlib.h>

#include "memory.h"

const struct properties on_device = {.type = PINNED_MEMORY, .location = {ON_DEVICE, 0}};

struct access own_access(void) { return (struct access){{ON_DEVICE, device}, READ_AND_WRITE}; }

void mapped_back(struct mapped *m)
{
	struct access access = own_access();
	for (size_t i = 0; i < m->count; i++) {
		CHECK(cuMemCreate(&m->handle[i], m->handle_bytes, &on_device, 0));
		CHECK(cuMemMap(m->address + i * m->handle_bytes, m->handle_bytes, 0, m->handle[i], 0));
	}
	CHECK(cuMemSetAccess(m->address, m->bytes, &access, 1));
}

void mapped_make(struct mapped *m, size_t handle_bytes, size_t count)
{
	*m = (struct mapped){.bytes = handle_bytes * count, .handle_bytes = handle_bytes, .count = count};
	m->handle = calloc(count, sizeof *m->handle);
	if (!m->handle)
		give_up("no memory");
	CHECK(cuMemAddressReserve(&m->address, m->bytes, 0, 0, 0));
	mapped_back(m);
}

void mapped_away(struct mapped *m)
{
	for (size_t i = 0; i < m->count; i++) {
		CHECK(cuMemUnmap(m->address + i * m->handle_bytes, m->handle_bytes));
		CHECK(cuMemRelease(m->handle[i]));
	}
}

void mapped_free(struct mapped *m)
{
	mapped_away(m);
	CHECK(cuMemAddressFree(m->address, m->bytes));
	free(m->handle);
}
