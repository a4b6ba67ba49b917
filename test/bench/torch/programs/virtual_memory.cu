// Virtual memory: handles that are mapped in turn, at two addresses at once, and in another process, which gets a descriptor.
#include "program.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t size;

static CUmemAllocationProp properties()
{
	CUmemAllocationProp p = {};
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	return p;
}

static void map(CUdeviceptr at, CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = {};
	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	CHECK(DRIVER(cuMemMap)(at, size, 0, handle, 0));
	CHECK(DRIVER(cuMemSetAccess)(at, size, &access, 1));
}

static void pass(int socket, int *fd, bool sends)
{
	char byte = 0, control[CMSG_SPACE(sizeof *fd)] = {};
	iovec part = {&byte, 1};
	msghdr message = {};
	message.msg_iov = &part, message.msg_iovlen = 1, message.msg_control = control,
	message.msg_controllen = sizeof control;
	if (sends) {
		cmsghdr *header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof *fd);
		*(int *)CMSG_DATA(header) = *fd;
		CHECK(sendmsg(socket, &message, 0) != 1);
	} else {
		CHECK(recvmsg(socket, &message, 0) != 1);
		*fd = *(int *)CMSG_DATA(CMSG_FIRSTHDR(&message));
	}
}

static void prepare()
{
	CHECK(cudaSetDevice(0));
	CHECK(cudaFree(nullptr));
	CUmemAllocationProp p = properties();
	CHECK(DRIVER(cuMemGetAllocationGranularity)(&size, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	size = (WORDS * sizeof(uint32_t) + size - 1) / size * size;
}

// The other process adds its part to what it is given.
static int other(int socket)
{
	int fd;
	pass(socket, &fd, false);
	prepare();
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	CHECK(DRIVER(cuMemImportFromShareableHandle)(&handle, (void *)(uintptr_t)fd,
						     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	CHECK(DRIVER(cuMemAddressReserve)(&at, size, 0, 0, 0));
	map(at, handle);
	for (uint32_t step = 0; step < 50; step++)
		mix<<<256, 256>>>((uint32_t *)at, WORDS, step);
	CHECK(cudaDeviceSynchronize());
	CHECK(DRIVER(cuMemUnmap)(at, size));
	CHECK(DRIVER(cuMemRelease)(handle));
	return 0;
}

int main()
{
	int sockets[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	pid_t child = fork();
	if (child == 0)
		return other(sockets[1]);
	prepare();
	CUmemGenericAllocationHandle handles[4];
	CUmemAllocationProp p = properties();
	for (auto &handle : handles)
		CHECK(DRIVER(cuMemCreate)(&handle, size, &p, 0));
	CUdeviceptr window, second;
	CHECK(DRIVER(cuMemAddressReserve)(&window, size, 0, 0, 0));
	CHECK(DRIVER(cuMemAddressReserve)(&second, size, 0, 0, 0));
	for (auto &handle : handles) {
		map(window, handle);
		CHECK(cudaMemset((void *)window, 1, size));
		CHECK(cudaDeviceSynchronize());
		CHECK(DRIVER(cuMemUnmap)(window, size));
	}
	for (uint32_t step = 0; step < 100; step++) { // each handle comes to the same address, and one is also at the second
		map(window, handles[step % 4]);
		map(second, handles[step % 4]);
		mix<<<256, 256>>>((uint32_t *)(step % 3 ? window : second), WORDS, step);
		CHECK(cudaDeviceSynchronize());
		CHECK(DRIVER(cuMemUnmap)(second, size));
		CHECK(DRIVER(cuMemUnmap)(window, size));
	}
	int fd, status;
	CHECK(DRIVER(cuMemExportToShareableHandle)(&fd, handles[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	pass(sockets[0], &fd, true);
	CHECK(waitpid(child, &status, 0) != child);
	CHECK(status);
	uint64_t sum = 14695981039346656037ull;
	for (auto &handle : handles) {
		map(window, handle);
		sum = checksum((uint32_t *)window, WORDS, sum);
		CHECK(DRIVER(cuMemUnmap)(window, size));
		CHECK(DRIVER(cuMemRelease)(handle));
	}
	printf("%016llx\n", (unsigned long long)sum);
	return 0;
}
