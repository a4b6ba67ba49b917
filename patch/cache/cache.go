// Package cache rewrites images with package patch. It keeps the results on disk, by a hash of the images' contents, for the next process
// that loads them.
//
// Any number of processes may use a directory without locks: a file is written under another name, renamed, and never
// changed. A reader checks its checksum first.
package cache

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mapping is a rewritten image in memory outside of Go's. The caller that gets it unmaps it.
type Mapping struct {
	Address unsafe.Pointer
	Bytes   int
	Cached  bool // it came from disk
}

// Data is the mapped memory.
func (m Mapping) Data() []byte { return unsafe.Slice((*byte)(m.Address), m.Bytes) }

// Refused lists the kernels that got no guard, and why.
func (m Mapping) Refused() iter.Seq2[string, string] { return refused(m.Data()) }

// Unmap gives the memory back.
func (m Mapping) Unmap() { _ = unix.MunmapPtr(m.Address, uintptr(m.Bytes)) }

// Allocate maps zeros.
func Allocate(size int) (Mapping, error) {
	address, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return Mapping{}, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return Mapping{Address: address, Bytes: size}, nil
}

// Directory is where the cache is by default.
func Directory(getenv func(string) string) (string, error) {
	if cache := getenv("XDG_CACHE_HOME"); filepath.IsAbs(cache) {
		return filepath.Join(cache, "gpreempt"), nil
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".cache/gpreempt"), nil
	}
	return "", errors.New("neither XDG_CACHE_HOME nor HOME is set")
}

const (
	extension = ".blp"
	temporary = ".new-" // beginning of the name of a file that is being written

	abandonedAfter = time.Hour // a file that no process finished
	usedEvery      = time.Hour // how often the time of a file's last use is renewed
	recountEvery   = 64        // files written until the others' are counted again
)

// Cache is a directory of bounded size.
type Cache struct {
	directory string
	limit     int64 // bytes

	mutex   sync.Mutex
	total   int64 // bytes of all files: the last count plus what was written since
	written int   // files, since then
	serial  int
}

// Open makes the directory, for this user alone, if it is missing.
func Open(directory string, limit int64) (*Cache, error) {
	if err := os.MkdirAll(filepath.Dir(directory), 0o700); err != nil {
		return nil, fmt.Errorf("make cache directory: %w", err)
	}
	if err := unix.Mkdir(directory, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make cache directory %s: %w", directory, err)
	}
	var is unix.Stat_t
	if err := unix.Lstat(directory, &is); err != nil {
		return nil, fmt.Errorf("stat cache directory %s: %w", directory, err)
	}
	switch {
	case is.Mode&unix.S_IFMT != unix.S_IFDIR:
		return nil, fmt.Errorf("cache directory %s: is not a directory", directory)
	case int(is.Uid) != os.Geteuid() || is.Mode&0o077 != 0:
		return nil, fmt.Errorf("cache directory %s: others than this user have rights to it", directory)
	}
	return &Cache{directory: directory, limit: limit, written: recountEvery}, nil
}

func (c *Cache) path(key Key) string {
	return filepath.Join(c.directory, hex.EncodeToString(key[:])+extension)
}

// Get returns the stored image. A damaged file is removed.
func (c *Cache) Get(key Key) (Mapping, bool) {
	path := c.path(key)
	m, err := read(path, key)
	if errors.Is(err, ErrDamaged) {
		_ = unix.Unlink(path)
	}
	return m, err == nil
}

func read(path string, key Key) (Mapping, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Mapping{}, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return Mapping{}, fmt.Errorf("stat %s: %w", path, err)
	}
	if is.Mode&unix.S_IFMT != unix.S_IFREG || int(is.Uid) != os.Geteuid() || is.Size < headerSize {
		return Mapping{}, fmt.Errorf("%s: %w", path, ErrDamaged)
	}
	m, err := mapFile(fd, int(is.Size))
	if err != nil {
		return Mapping{}, fmt.Errorf("map %s: %w", path, err)
	}
	if err := check(m.Data(), key); err != nil {
		m.Unmap()
		return Mapping{}, fmt.Errorf("%s: %w", path, err)
	}
	if now := time.Now(); now.Sub(time.Unix(is.Mtim.Unix())) > usedEvery {
		stamp := unix.NsecToTimeval(now.UnixNano())
		_ = unix.Futimes(fd, []unix.Timeval{stamp, stamp})
	}
	m.Cached = true
	return m, nil
}

// mapFile maps a file of a local file system. It reads a file of another one: there a mapping may lose its pages when another process
// removes the file, and the program would get SIGBUS.
func mapFile(fd, size int) (Mapping, error) {
	var on unix.Statfs_t
	if err := unix.Fstatfs(fd, &on); err != nil {
		return Mapping{}, err
	}
	local := []uint32{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC}
	if slices.Contains(local, uint32(on.Type)) {
		address, err := unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ, unix.MAP_PRIVATE)
		return Mapping{Address: address, Bytes: size}, err
	}
	return readFile(fd, size)
}

func readFile(fd, size int) (Mapping, error) {
	m, err := Allocate(size)
	if err != nil {
		return Mapping{}, err
	}
	for data := m.Data(); len(data) > 0; {
		n, err := unix.Read(fd, data)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			m.Unmap()
			return Mapping{}, cmp.Or(err, ErrDamaged)
		}
		data = data[n:]
	}
	return m, nil
}

// Put stores data, and removes the files that were used longest ago if the limit is exceeded.
func (c *Cache) Put(key Key, data []byte) error {
	size := int64(len(data))
	if size > c.limit/2 {
		return nil
	}
	c.mutex.Lock()
	c.written++
	c.serial++
	c.total += size
	if c.total > c.limit || c.written > recountEvery {
		c.trim(size)
	}
	name := fmt.Sprintf("%s%d-%d-%d", temporary, os.Getpid(), time.Now().UnixNano(), c.serial)
	c.mutex.Unlock()
	path := filepath.Join(c.directory, name)
	if err := write(path, data); err != nil {
		_ = unix.Unlink(path)
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := unix.Rename(path, c.path(key)); err != nil {
		_ = unix.Unlink(path)
		return fmt.Errorf("rename %s: %w", path, err)
	}
	return nil
}

func write(path string, data []byte) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			unix.Close(fd)
			return err
		}
		data = data[n:]
	}
	return unix.Close(fd)
}

// trim counts all files. If there is no room for size bytes it frees that and a tenth of the limit. Other processes may do
// the same at the same time.
func (c *Cache) trim(size int64) {
	type file struct {
		name string
		size int64
		used time.Time
	}
	var files []file
	entries, err := os.ReadDir(c.directory)
	if err != nil {
		return
	}
	c.total, c.written = size, 0
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		switch {
		case strings.HasPrefix(e.Name(), temporary):
			if time.Since(info.ModTime()) > abandonedAfter {
				_ = unix.Unlink(filepath.Join(c.directory, e.Name()))
			}
		case strings.HasSuffix(e.Name(), extension):
			files = append(files, file{e.Name(), info.Size(), info.ModTime()})
			c.total += info.Size()
		}
	}
	if c.total <= c.limit {
		return
	}
	slices.SortFunc(files, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range files {
		if c.total <= c.limit-c.limit/10 {
			break
		}
		_ = unix.Unlink(filepath.Join(c.directory, f.name))
		c.total -= f.size
	}
}
