package rewriter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/patch"
	"github.com/gpreempt/gpreempt/patch/cache"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// pick reads the part of an image that a GPU of compute capability sm takes. The image is at an address of this process, or in a file if
// path is not empty. The returned data is a mapping, which the caller unmaps.
func pick(at reader, path string, sm int) (patch.Image, error) {
	if path == "" {
		from, parts, err := imageAt(at)
		if err != nil {
			return patch.Image{}, err
		}
		image, err := pickFrom(from, sm)
		if err == nil && image.PTX() && parts { // what belongs to it would be missing
			unmap(image)
			return patch.Image{}, errors.New("linked of several fatbins as it is loaded")
		}
		return image, err
	}
	file, err := openFile(path)
	if err != nil {
		return patch.Image{}, err
	}
	defer unix.Close(file.fd)
	return pickFrom(file, sm)
}

func pickFrom(source io.ReaderAt, sm int) (patch.Image, error) {
	var mapping cache.Mapping
	image, err := patch.Pick(source, sm, func(size int) (data []byte, err error) {
		if mapping, err = cache.Allocate(size); err != nil {
			return nil, err
		}
		return mapping.Data(), nil
	})
	if err != nil && mapping.Bytes > 0 {
		mapping.Unmap()
	}
	return image, err
}

func unmap(image patch.Image) {
	cache.Mapping{Address: unsafe.Pointer(unsafe.SliceData(image.Data)), Bytes: len(image.Data)}.Unmap()
}

// reader reads memory of the program.
type reader interface {
	io.ReaderAt
	from(address uint64) reader
}

// imageAt follows the wrapper that the compiler puts around a fatbin (fatbinary_section.h). parts: the fatbin is one of
// several that belong together.
func imageAt(at reader) (image reader, parts bool, err error) {
	const (
		fatbinCMagic       = 0x466243B1
		fatbinCLinkVersion = 2
	)
	var wrapper [16]byte
	if _, err := at.ReadAt(wrapper[:4], 0); err != nil {
		return nil, false, fmt.Errorf("read code: %w", err)
	}
	if binary.LittleEndian.Uint32(wrapper[:]) != fatbinCMagic {
		return at, false, nil
	}
	if _, err := at.ReadAt(wrapper[:], 0); err != nil {
		return nil, false, fmt.Errorf("read a fatbin's wrapper: %w", err)
	}
	return at.from(binary.LittleEndian.Uint64(wrapper[8:])), binary.LittleEndian.Uint32(wrapper[4:]) == fatbinCLinkVersion, nil
}

// file is a module's file, and a 0 behind it, which ends PTX.
type file struct {
	fd   int
	size int64
}

func openFile(path string) (file, error) {
	open := func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) }
	if segment.Of != nil { // its folder, its root, its descriptors
		open = func() (int, error) { return segment.Of.Open(path) }
	}
	fd, err := open()
	if err != nil {
		return file{}, fmt.Errorf("open the file of a module: %w", err)
	}
	var is unix.Stat_t
	if err = unix.Fstat(fd, &is); err != nil {
		err = fmt.Errorf("stat the file of a module: %w", err)
	} else if is.Mode&unix.S_IFMT != unix.S_IFREG || is.Size > patch.DefaultMaxSize {
		err = errors.New("the file of a module is of an unexpected kind or size")
	}
	if err != nil {
		unix.Close(fd)
		return file{}, err
	}
	return file{fd, is.Size}, nil
}

func (f file) ReadAt(p []byte, offset int64) (int, error) {
	done := 0
	for at := offset; done < len(p) && at < f.size; at = offset + int64(done) {
		n, err := unix.Pread(f.fd, p[done:done+int(min(int64(len(p)-done), f.size-at))], at)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return done, fmt.Errorf("read the file of a module: %w", errors.Join(err, io.ErrUnexpectedEOF))
		}
		done += n
	}
	if done < len(p) && offset+int64(done) == f.size {
		p[done] = 0
		done++
	}
	if done < len(p) {
		return done, io.EOF
	}
	return done, nil
}
