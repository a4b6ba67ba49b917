// libc.h - the functions of libc that are intercepted to see data arrive on sockets; the counterpart of table.h.
// A row is LIBC(type, name, parameters, arguments, before, after). before and after run only while there are hooks; after may
// look at result. The includer defines LIBC, which is undefined at the end.

LIBC(ssize_t, read, (int fd, void *buffer, size_t size), (fd, buffer, size), , tell_read(hooks, fd, result))
LIBC(ssize_t, __read_chk, (int fd, void *buffer, size_t size, size_t room), (fd, buffer, size, room), ,
     tell_read(hooks, fd, result))
LIBC(ssize_t, readv, (int fd, const struct iovec *parts, int count), (fd, parts, count), , tell_read(hooks, fd, result))
LIBC(ssize_t, recv, (int fd, void *buffer, size_t size, int flags), (fd, buffer, size, flags), ,
     tell_read(hooks, fd, result))
LIBC(ssize_t, __recv_chk, (int fd, void *buffer, size_t size, size_t room, int flags), (fd, buffer, size, room, flags),
     , tell_read(hooks, fd, result))
LIBC(ssize_t, recvfrom,
     (int fd, void *restrict buffer, size_t size, int flags, struct sockaddr *restrict from, socklen_t *restrict length),
     (fd, buffer, size, flags, from, length), , tell_read(hooks, fd, result))
LIBC(ssize_t, __recvfrom_chk,
     (int fd, void *restrict buffer, size_t size, size_t room, int flags, struct sockaddr *restrict from,
      socklen_t *restrict length),
     (fd, buffer, size, room, flags, from, length), , tell_read(hooks, fd, result))
LIBC(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags), , tell_read(hooks, fd, result))
LIBC(int, poll, (struct pollfd * fds, nfds_t count, int timeout), (fds, count, timeout), ,
     tell_polled(hooks, fds, count, result))
LIBC(int, __poll_chk, (struct pollfd * fds, nfds_t count, int timeout, size_t room), (fds, count, timeout, room), ,
     tell_polled(hooks, fds, count, result))
LIBC(int, ppoll, (struct pollfd * fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask),
     (fds, count, timeout, mask), , tell_polled(hooks, fds, count, result))
LIBC(int, __ppoll_chk,
     (struct pollfd * fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask, size_t room),
     (fds, count, timeout, mask, room), , tell_polled(hooks, fds, count, result))
LIBC(int, epoll_wait, (int fd, struct epoll_event *events, int most, int timeout), (fd, events, most, timeout), ,
     tell_epolled(hooks, events, result))
LIBC(int, epoll_pwait, (int fd, struct epoll_event *events, int most, int timeout, const sigset_t *mask),
     (fd, events, most, timeout, mask), , tell_epolled(hooks, events, result))
LIBC(int, select,
     (int count, fd_set *restrict in, fd_set *restrict out, fd_set *restrict other, struct timeval *restrict timeout),
     (count, in, out, other, timeout), , tell_selected(hooks, in, count, result))
LIBC(int, pselect,
     (int count, fd_set *restrict in, fd_set *restrict out, fd_set *restrict other,
      const struct timespec *restrict timeout, const sigset_t *restrict mask),
     (count, in, out, other, timeout, mask), , tell_selected(hooks, in, count, result))
LIBC(int, close, (int fd), (fd), tell_closed(hooks, fd), tell_closed(hooks, fd))
LIBC(int, dup2, (int fd, int to), (fd, to), tell_closed(hooks, to), tell_closed(hooks, result))
LIBC(int, dup3, (int fd, int to, int flags), (fd, to, flags), tell_closed(hooks, to), tell_closed(hooks, result))
LIBC(int, accept, (int fd, struct sockaddr *restrict from, socklen_t *restrict length), (fd, from, length), ,
     tell_accepted(hooks, result, fd))
LIBC(int, accept4, (int fd, struct sockaddr *restrict from, socklen_t *restrict length, int flags),
     (fd, from, length, flags), , tell_accepted(hooks, result, fd))

#undef LIBC
