// libc.c - the exported functions of libc.h: they see data arrive on sockets.
#undef _FORTIFY_SOURCE // the functions are defined here
#include "exports/layer.h"
#include "hints/socket_hooks.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

// Keeps errno for the caller.
static void tell(const struct gp_socket_hooks *hooks, int fd, bool ready)
{
	int saved_errno = errno;
	hooks->readable(fd, ready);
	errno = saved_errno;
}

static void tell_read(const struct gp_socket_hooks *hooks, int fd, ssize_t result)
{
	if (result > 0)
		tell(hooks, fd, false);
}

static void tell_polled(const struct gp_socket_hooks *hooks, const struct pollfd *fds, nfds_t count, int result)
{
	for (nfds_t i = 0; result > 0 && i < count; i++)
		if (fds[i].revents & POLLIN)
			tell(hooks, fds[i].fd, true);
}

// A program may attach any value to a descriptor, but most attach its number. If the guess is wrong, a hint is wrong, which is
// harmless. If a program attaches something else, its reads still tell.
static void tell_epolled(const struct gp_socket_hooks *hooks, const struct epoll_event *events, int result)
{
	for (int i = 0; i < result; i++)
		if (events[i].events & EPOLLIN && events[i].data.u64 < FD_SETSIZE * 64)
			tell(hooks, events[i].data.fd, true);
}

static void tell_selected(const struct gp_socket_hooks *hooks, const fd_set *in, int count, int result)
{
	for (int fd = 0; in && result > 0 && fd < count; fd++)
		if (FD_ISSET(fd, in))
			tell(hooks, fd, true);
}

// Called before a descriptor is closed, while no other thread can have got its number. Called once more after that, because another
// thread may have looked at the descriptor meanwhile.
static void tell_closed(const struct gp_socket_hooks *hooks, int fd)
{
	int saved_errno = errno;
	if (fd >= 0)
		hooks->closed(fd);
	errno = saved_errno;
}

static void tell_accepted(const struct gp_socket_hooks *hooks, int fd, int listener)
{
	int saved_errno = errno;
	if (fd >= 0)
		hooks->accepted(fd, listener);
	errno = saved_errno;
}

#define LIBC(type, name, params, args, before, after) static _Atomic(void *) next_##name;
#include "exports/libc.h"

static COLD void *find(_Atomic(void *) *next, const char *name)
{
	int saved_errno = errno;
	void *found = gp_next_symbol(name);
	errno = saved_errno;
	if (found)
		atomic_store_explicit(next, found, memory_order_release);
	return found;
}

#define LIBC(type, name, params, args, before, after) \
	PUBLIC type name params; \
	PUBLIC type name params \
	{ \
		typedef type function params; \
		function *next = (function *)atomic_load_explicit(&next_##name, memory_order_acquire); \
		if (!likely(next) && !(next = (function *)find(&next_##name, #name))) { \
			errno = ENOSYS; \
			return -1; \
		} \
		const struct gp_socket_hooks *hooks = \
			atomic_load_explicit(&gp_installed_socket_hooks, memory_order_acquire); \
		if (likely(!hooks)) \
			return next args; \
		before; \
		type result = next args; \
		after; \
		return result; \
	}
#include "exports/libc.h"

void gp_find_libc(void)
{
#define LIBC(type, name, params, args, before, after) find(&next_##name, #name);
#include "exports/libc.h"
}
