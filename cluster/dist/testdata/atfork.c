// atfork.c - pthread_atfork for the simulated driver, which is linked without the part of glibc that is in no shared library.
int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);

__attribute__((visibility("hidden"))) int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
	return __register_atfork(prepare, parent, child, 0);
}
