// vmm.c - virtual memory management: reserved addresses, physical memory, mappings, and access.
//
// Physical memory is a part of a sparse file, which is mapped at the reserved address. So contents belong to the handle, addresses stay,
// and addresses that are only reserved cannot be touched. As on a GPU, no call here waits for work of the device.
#define _GNU_SOURCE
#include "sim.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULARITY (2ull << 20)
#define FILE_BYTES (1ull << 45) // of the file that the process's physical memory is in
#define DEVICES 8
#define HOST DEVICES // its index in mapping.access

typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct { int type, id; } CUmemLocation;
enum { LOCATION_DEVICE = 1, LOCATION_HOST, LOCATION_HOST_NUMA, LOCATION_HOST_NUMA_CURRENT };
enum { ALLOCATION_PINNED = 1, HANDLE_POSIX_FD = 1, LARGE_BYTES = 64 << 20 };
enum { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_READWRITE = 3 };
typedef struct {
	int type, requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType, gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

struct physical { // what cuMemCreate made
	struct physical *next;
	CUmemGenericAllocationHandle handle;
	uint64_t bytes, offset; // offset: in its file
	CUmemAllocationProp properties;
	unsigned handles, mappings; // it is freed when neither is left
	int fd;                     // its own file; -1 = it is in the file of the process
	bool imported;              // the process that made it is charged for it
};
struct reservation { uint64_t address, bytes; };

static struct physical *all;
static struct reservation *reservations;
static struct mapping *mappings;
static size_t reservation_count, mapping_count;
static int file = -1;
static pthread_rwlock_t in_use = PTHREAD_RWLOCK_INITIALIZER; // mappings change with sim_lock and this

void virtual_hold(void)
{
	pthread_rwlock_rdlock(&in_use); // the caller has sim_lock, so no change is under way
}

void virtual_let_go(void) { pthread_rwlock_unlock(&in_use); }

void virtual_change_begin(void) { pthread_rwlock_wrlock(&in_use); }

void virtual_change_end(void) { pthread_rwlock_unlock(&in_use); }

// ---- looking up

static struct reservation *reservation_of(uint64_t address)
{
	for (size_t i = 0; i < reservation_count; i++)
		if (address - reservations[i].address < reservations[i].bytes)
			return &reservations[i];
	return NULL;
}

struct mapping *virtual_mapping(uint64_t address)
{
	for (size_t i = 0; i < mapping_count; i++)
		if (address - mappings[i].address < mappings[i].bytes)
			return &mappings[i];
	return NULL;
}

bool virtual_reserved(uint64_t address, uint64_t bytes)
{
	struct reservation *r = reservation_of(address);
	return r && bytes <= r->bytes - (address - r->address);
}

bool virtual_accessible(uint64_t address, uint64_t bytes, int device)
{
	if (!virtual_reserved(address, bytes))
		return false;
	for (uint64_t at = address; at < address + bytes;) {
		struct mapping *m = virtual_mapping(at);
		if (!m || !m->access[device < 0 ? HOST : device])
			return false;
		at = m->address + m->bytes;
	}
	return true;
}

int virtual_device(const struct mapping *m)
{
	const CUmemLocation *l = &m->physical->properties.location;
	return l->type == LOCATION_DEVICE ? l->id : -1;
}

unsigned virtual_handle_types(const struct mapping *m)
{
	return (unsigned)m->physical->properties.requestedHandleTypes;
}

bool virtual_rdma(const struct mapping *m) { return m->physical->properties.allocFlags.gpuDirectRDMACapable; }

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
	struct physical *p = all;
	while (p && !(p->handle == handle && p->handles))
		p = p->next;
	return p;
}

// ---- logical endpoints, CUDA 13.3: any number names one, and bindings last. The fabric is not simulated.

CALL(cuLogicalEndpointBindMem,
     (uint32_t id, CUdevice d, uint64_t at, CUmemGenericAllocationHandle memory, uint64_t from, uint64_t bytes,
      unsigned long long flags),
     (id, d, at, memory, from, bytes, flags))
{
	(void)id, (void)at;
	CUresult r = flags || d < 0 || d >= sim_devices() || !bytes ? CUDA_ERROR_INVALID_VALUE : enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	const struct physical *p = physical_of(memory);
	return leave(p && from <= p->bytes && bytes <= p->bytes - from ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CALL(cuLogicalEndpointBindAddr,
     (uint32_t id, CUdevice d, uint64_t at, void *memory, uint64_t bytes, unsigned long long flags),
     (id, d, at, memory, bytes, flags))
{
	(void)id, (void)at;
	CUresult r = flags || d < 0 || d >= sim_devices() || !bytes ? CUDA_ERROR_INVALID_VALUE : enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	return leave(virtual_mapping((uint64_t)memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static bool aligned(uint64_t n) { return n % GRANULARITY == 0; }

// ---- addresses

CALL(cuMemAddressReserve,
     (CUdeviceptr * out, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags),
     (out, bytes, alignment, wanted, flags))
{
	if (!out || !bytes || !aligned(bytes) || (alignment & (alignment - 1)) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	uint64_t step = alignment > GRANULARITY ? alignment : GRANULARITY;
	struct reservation *more = realloc(reservations, (reservation_count + 1) * sizeof *more);
	if (!more)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	reservations = more;
	int private = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	void *p = MAP_FAILED;
	if (wanted && wanted % step == 0)
		p = mmap((void *)wanted, bytes, PROT_NONE, private | MAP_FIXED_NOREPLACE, -1, 0);
	if (p == MAP_FAILED && (p = mmap(NULL, bytes + step, PROT_NONE, private, -1, 0)) != MAP_FAILED) {
		uint64_t start = ((uint64_t)p + step - 1) / step * step, end = (uint64_t)p + bytes + step;
		if (start > (uint64_t)p)
			munmap(p, start - (uint64_t)p);
		if (end > start + bytes)
			munmap((void *)(start + bytes), end - start - bytes);
		p = (void *)start;
	}
	if (p == MAP_FAILED)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	reservations[reservation_count++] = (struct reservation){(uint64_t)p, bytes};
	*out = (CUdeviceptr)p;
	return leave(CUDA_SUCCESS);
}

CALL(cuMemAddressFree, (CUdeviceptr address, size_t bytes), (address, bytes))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	struct reservation *v = reservation_of(address);
	bool free = v && v->address == address && v->bytes == bytes;
	for (size_t i = 0; free && i < mapping_count; i++)
		free = mappings[i].address - address >= bytes;
	if (!free)
		return leave(CUDA_ERROR_INVALID_VALUE);
	munmap((void *)address, bytes);
	*v = reservations[--reservation_count];
	return leave(CUDA_SUCCESS);
}

// ---- physical memory

static CUresult check_properties(const CUmemAllocationProp *p)
{
	if (!p || p->type != ALLOCATION_PINNED || p->win32HandleMetaData)
		return CUDA_ERROR_INVALID_VALUE;
	if (p->requestedHandleTypes & ~HANDLE_POSIX_FD)
		return CUDA_ERROR_NOT_SUPPORTED; // there is no fabric
	switch (p->location.type) {
	case LOCATION_DEVICE:
		return p->location.id >= 0 && p->location.id < sim_devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	case LOCATION_HOST:
	case LOCATION_HOST_NUMA:
	case LOCATION_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
}

CALL(cuMemGetAllocationGranularity, (size_t *out, const CUmemAllocationProp *p, int option), (out, p, option))
{
	CUresult r = out && (option == 0 || option == 1) ? check_properties(p) : CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		*out = GRANULARITY;
	return r;
}

static bool is_charged(const struct physical *p)
{
	return p->properties.location.type == LOCATION_DEVICE && !p->imported;
}

static struct physical *physical_new(uint64_t bytes, const CUmemAllocationProp *properties)
{
	static CUmemGenericAllocationHandle last = 0x1000;
	struct physical *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	*p = (struct physical){all, ++last, bytes, 0, *properties, 1, 0, -1, false};
	all = p;
	return p;
}

static void physical_drop(struct physical *p)
{
	if (p->handles || p->mappings)
		return;
	if (is_charged(p))
		memory_freed(p->properties.location.id, p->bytes);
	if (p->fd >= 0)
		close(p->fd);
	else
		fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)p->offset, (off_t)p->bytes);
	struct physical **at = &all;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	free(p);
}

// A file for memory that may be shared. Its last bytes describe it. -1: there is none.
#define MARK 0x6d656d2d61647563ull
struct label {
	uint64_t mark, bytes;
	CUmemAllocationProp properties;
};

static int own_file(const struct physical *p)
{
	int own = memfd_create("simcuda-shared", MFD_CLOEXEC);
	struct label label = {MARK, p->bytes, p->properties};
	if (own >= 0 && ftruncate(own, (off_t)(p->bytes + sizeof label)) == 0 &&
	    pwrite(own, &label, sizeof label, (off_t)p->bytes) == (ssize_t)sizeof label)
		return own;
	if (own >= 0)
		close(own);
	return -1;
}

CALL(cuMemCreate,
     (CUmemGenericAllocationHandle * out, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags),
     (out, bytes, properties, flags))
{
	static uint64_t end; // the part of the file before it has been given out
	CUresult r = out && bytes && aligned(bytes) && !flags ? check_properties(properties) : CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (file < 0) {
		file = memfd_create("simcuda-memory", MFD_CLOEXEC);
		if (file < 0 || ftruncate(file, FILE_BYTES) != 0)
			return leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	bool device = properties->location.type == LOCATION_DEVICE;
	if (bytes > FILE_BYTES - end || (device && !memory_charge(properties->location.id, bytes)))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	struct physical *p = physical_new(bytes, properties);
	if (!p) {
		if (device)
			memory_discharge(properties->location.id, bytes);
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	p->offset = end;
	end += bytes;
	// Another process waits for an export, which takes a driver no time. So what takes long to move is in a file of its own
	// from the beginning.
	if (bytes >= LARGE_BYTES && properties->requestedHandleTypes & HANDLE_POSIX_FD && (p->fd = own_file(p)) >= 0)
		p->offset = 0;
	*out = p->handle;
	leave(CUDA_SUCCESS);
	if (device)
		sim_create(bytes);
	return CUDA_SUCCESS;
}

static CUresult enter_physical(CUmemGenericAllocationHandle handle, struct physical **p)
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	*p = physical_of(handle);
	return *p ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

CALL(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
{
	struct physical *p;
	CUresult r = enter_physical(handle, &p);
	if (r != CUDA_SUCCESS)
		return r;
	p->handles--;
	physical_drop(p);
	return leave(CUDA_SUCCESS);
}

CALL(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp * out, CUmemGenericAllocationHandle handle),
     (out, handle))
{
	struct physical *p;
	CUresult r = out ? enter_physical(handle, &p) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = p->properties;
	return leave(CUDA_SUCCESS);
}

// The handle of memory that cuMemMap put there. Memory of cuMemAlloc and of pools has none.
CALL(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * out, void *address), (out, address))
{
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	struct mapping *m = virtual_mapping((uint64_t)address);
	if (!m)
		return leave(CUDA_ERROR_INVALID_VALUE);
	m->physical->handles++;
	*out = m->physical->handle;
	return leave(CUDA_SUCCESS);
}

// ---- mappings

static bool put_there(const struct mapping *m)
{
	const struct physical *p = m->physical;
	return mmap((void *)m->address, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
		    p->fd >= 0 ? p->fd : file, (off_t)p->offset) != MAP_FAILED;
}

static void take_away(const struct mapping *m)
{
	mmap((void *)m->address, m->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

CALL(cuMemMap,
     (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags),
     (address, bytes, offset, handle, flags))
{
	struct physical *p;
	bool sound = bytes && aligned(address) && aligned(bytes) && !offset &&
		     !flags; // "offset: currently must be zero", cuda.h
	CUresult r = sound ? enter_physical(handle, &p) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (bytes > p->bytes || !virtual_reserved(address, bytes))
		return leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < mapping_count; i++)
		if (mappings[i].address < address + bytes && address < mappings[i].address + mappings[i].bytes)
			return leave(CUDA_ERROR_INVALID_VALUE);
	struct mapping *more = realloc(mappings, (mapping_count + 1) * sizeof *more);
	if (!more)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	mappings = more;
	struct mapping m = {.address = address, .bytes = bytes, .id = memory_next_id(), .physical = p};
	pthread_rwlock_wrlock(&in_use);
	bool there = put_there(&m);
	if (!there)
		take_away(&m);
	pthread_rwlock_unlock(&in_use);
	if (!there)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	p->mappings++;
	mappings[mapping_count++] = m;
	return leave(CUDA_SUCCESS);
}

bool virtual_whole(uint64_t address, uint64_t bytes)
{
	uint64_t at = address;
	for (struct mapping *m; at < address + bytes && (m = virtual_mapping(at));)
		at = m->address + m->bytes;
	return at >= address + bytes;
}

// Whether a range consists of whole mappings.
static bool whole(uint64_t address, uint64_t bytes)
{
	if (!bytes || !virtual_reserved(address, bytes))
		return false;
	uint64_t end = address + bytes, at = address;
	while (at < end) {
		struct mapping *m = virtual_mapping(at);
		if (!m || m->address != at)
			return false;
		at += m->bytes;
	}
	return at == end;
}

CALL(cuMemUnmap, (CUdeviceptr address, size_t bytes), (address, bytes))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!whole(address, bytes))
		return leave(CUDA_ERROR_INVALID_VALUE);
	pthread_rwlock_wrlock(&in_use);
	for (size_t i = mapping_count; i-- > 0;) {
		if (mappings[i].address - address >= bytes)
			continue;
		struct mapping m = mappings[i];
		mappings[i] = mappings[--mapping_count];
		take_away(&m);
		m.physical->mappings--;
		physical_drop(m.physical);
	}
	pthread_rwlock_unlock(&in_use);
	return leave(CUDA_SUCCESS);
}

static int accessor_of(const CUmemLocation *l)
{ // index in mapping.access, -1 = there is no such place
	switch (l->type) {
	case LOCATION_DEVICE: return l->id >= 0 && l->id < sim_devices() ? l->id : -1;
	case LOCATION_HOST:
	case LOCATION_HOST_NUMA:
	case LOCATION_HOST_NUMA_CURRENT: return HOST;
	default: return -1;
	}
}

CALL(cuMemSetAccess, (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *what, size_t count),
     (address, bytes, what, count))
{
	CUresult r = what && count ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!whole(address, bytes))
		return leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t k = 0; k < count; k++) {
		if (accessor_of(&what[k].location) < 0)
			return leave(what[k].location.type == LOCATION_DEVICE ? CUDA_ERROR_INVALID_DEVICE :
										CUDA_ERROR_INVALID_VALUE);
		if (what[k].flags != ACCESS_NONE && what[k].flags != ACCESS_READ && what[k].flags != ACCESS_READWRITE)
			return leave(CUDA_ERROR_INVALID_VALUE);
	}
	for (size_t i = 0; i < mapping_count; i++)
		for (size_t k = 0; k < count && mappings[i].address - address < bytes; k++)
			mappings[i].access[accessor_of(&what[k].location)] = (uint8_t)what[k].flags;
	return leave(CUDA_SUCCESS);
}

CALL(cuMemGetAccess, (unsigned long long *out, const CUmemLocation *location, CUdeviceptr address),
     (out, location, address))
{
	CUresult r = out && location && accessor_of(location) >= 0 ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	struct mapping *m = virtual_mapping(address);
	if (!m)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = m->access[accessor_of(location)];
	return leave(CUDA_SUCCESS);
}

// ---- sharing: exported memory is in a file of its own, or moves there

static bool copy_contents(int to, const struct physical *p)
{ // holes stay holes
	off_t end = (off_t)(p->offset + p->bytes);
	for (off_t at = lseek(file, (off_t)p->offset, SEEK_DATA); at >= 0 && at < end; at = lseek(file, at, SEEK_DATA)) {
		off_t hole = lseek(file, at, SEEK_HOLE), stop = hole < end ? hole : end;
		if (lseek(to, at - (off_t)p->offset, SEEK_SET) < 0)
			return false;
		while (at < stop)
			if (sendfile(to, file, &at, (size_t)(stop - at)) <= 0)
				return false;
	}
	return true;
}

static bool give_own_file(struct physical *p)
{
	int own = own_file(p);
	pthread_rwlock_wrlock(&in_use);
	bool done = own >= 0 && copy_contents(own, p);
	if (done) {
		fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)p->offset, (off_t)p->bytes);
		p->fd = own;
		p->offset = 0;
		for (size_t i = 0; i < mapping_count; i++)
			if (mappings[i].physical == p)
				put_there(&mappings[i]);
	} else if (own >= 0) {
		close(own);
	}
	pthread_rwlock_unlock(&in_use);
	return done;
}

CALL(cuMemExportToShareableHandle, (void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags),
     (out, handle, type, flags))
{
	struct physical *p;
	CUresult r = out && type == HANDLE_POSIX_FD && !flags ? enter_physical(handle, &p) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!(p->properties.requestedHandleTypes & type))
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (p->fd < 0 && !give_own_file(p))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	*(int *)out = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
	return leave(*(int *)out < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
}

CALL(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle * out, void *shared, int type), (out, shared, type))
{
	struct label label;
	struct stat st;
	int given = (int)(intptr_t)shared;
	CUresult r = out && type == HANDLE_POSIX_FD ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (fstat(given, &st) != 0 || st.st_size < (off_t)sizeof label ||
	    pread(given, &label, sizeof label, st.st_size - (off_t)sizeof label) != (ssize_t)sizeof label ||
	    label.mark != MARK || label.bytes != (uint64_t)st.st_size - sizeof label)
		return leave(CUDA_ERROR_INVALID_VALUE);
	int own = fcntl(given, F_DUPFD_CLOEXEC, 0);
	struct physical *p = own >= 0 ? physical_new(label.bytes, &label.properties) : NULL;
	if (!p) {
		close(own);
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	p->fd = own;
	p->imported = true;
	*out = p->handle;
	return leave(CUDA_SUCCESS);
}
