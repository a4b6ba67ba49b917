//go:build !amd64

package segment

// pageSize is GP_PAGE: the most that a page of memory has on this architecture.
const pageSize = 65536
