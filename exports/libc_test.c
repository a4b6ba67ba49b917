// libc_test.c - with exports/libc.c.
//
// The hooks' news from the functions of libc that see data arrive. Ends well or says what is wrong.
#include "exports/layer.h"
#include "hints/socket_hooks.h"
#include "test/units/check.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

_Atomic(const struct gp_socket_hooks *) gp_installed_socket_hooks;

void *gp_next_symbol(const char *name) { return dlsym(RTLD_NEXT, name); }

// volatile: libc declares some of its functions as leaves, which call nothing of this file.
static volatile struct {
	unsigned times;
	int fd, other;
	bool ready;
} read_, closed_, accepted_;

static void readable(int fd, bool ready)
{
	read_.times++, read_.fd = fd, read_.ready = ready;
	errno = ENOTTY;
}

static void closed(int fd)
{
	closed_.times++, closed_.fd = fd;
	errno = ENOTTY;
}

static void accepted(int fd, int listener)
{
	accepted_.times++, accepted_.fd = fd, accepted_.other = listener;
	errno = ENOTTY;
}

// True where the hook was called once since the last question: for that descriptor, of data read or ready.
static bool told(int fd, bool ready)
{
	bool is = read_.times == 1 && read_.fd == fd && read_.ready == ready;
	read_.times = 0;
	return is;
}

int main(void)
{
	static const struct gp_socket_hooks hooks = {readable, closed, accepted};
	int silent[2], end[2];
	char byte = 1;
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, silent));
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, end));
	gp_installed_socket_hooks = &hooks;

	// No data has come: no hook is called, and the caller's errno stays.
	struct pollfd polled[] = {{silent[0], POLLIN, 0}, {end[0], POLLIN, 0}};
	struct timeval at_once = {0};
	CHECK(read(end[0], &byte, 1) == -1 && errno == EAGAIN);
	CHECK(poll(polled, 2, 0) == 0 && read_.times == 0);

	CHECK(write(end[1], &byte, 1) == 1);
	CHECK(poll(polled, 2, 0) == 1 && told(end[0], true));

	fd_set in;
	FD_ZERO(&in);
	FD_SET(silent[0], &in);
	FD_SET(end[0], &in);
	CHECK(select(64, &in, NULL, NULL, &at_once) == 1 && told(end[0], true));
	FD_ZERO(&in);
	FD_SET(silent[0], &in);
	CHECK(select(64, &in, NULL, NULL, &at_once) == 0 && read_.times == 0);
	FD_SET(silent[0], &in);
	CHECK(select(0, NULL, NULL, NULL, &at_once) == 0 && read_.times == 0);
	struct timeval wrong = {.tv_sec = -1}; // select leaves the set unchanged
	CHECK(select(64, &in, NULL, NULL, &wrong) == -1 && errno == EINVAL && read_.times == 0);

	struct epoll_event event = {.events = EPOLLIN, .data.fd = end[0]};
	int events = epoll_create1(0);
	CHECK(events >= 0 && !epoll_ctl(events, EPOLL_CTL_ADD, end[0], &event));
	CHECK(epoll_wait(events, &event, 1, 0) == 1 && told(end[0], true));
	event = (struct epoll_event){.events = EPOLLIN, .data.u64 = ~0ull}; // no descriptor
	CHECK(!epoll_ctl(events, EPOLL_CTL_MOD, end[0], &event));
	CHECK(epoll_wait(events, &event, 1, 0) == 1 && read_.times == 0);

	CHECK(recv(end[0], &byte, 1, MSG_PEEK) == 1 && told(end[0], false));
	CHECK(read(end[0], &byte, 1) == 1 && told(end[0], false));

	// The hook is called before and after a descriptor ends, and where dup2 gives its number to another one.
	CHECK(close(events) == 0 && closed_.times == 2 && closed_.fd == events);
	CHECK(dup2(silent[0], end[0]) == end[0] && closed_.times == 4 && closed_.fd == end[0]);
	CHECK(close(-1) == -1 && errno == EBADF && closed_.times == 4);

	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(listener >= 0 && !bind(listener, &(struct sockaddr){.sa_family = AF_UNIX}, sizeof(sa_family_t)));
	CHECK(!listen(listener, 1) && accept(listener, NULL, NULL) == -1 && errno == EAGAIN && accepted_.times == 0);
	struct sockaddr_storage address;
	socklen_t size = sizeof address;
	CHECK(!getsockname(listener, (struct sockaddr *)&address, &size));
	int client = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(client >= 0 && !connect(client, (struct sockaddr *)&address, size));
	int server = accept(listener, NULL, NULL);
	CHECK(server >= 0 && accepted_.times == 1 && accepted_.fd == server && accepted_.other == listener);
	gp_installed_socket_hooks = NULL;
	return 0;
}
