package patch

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
)

// Form says what an image is. The numbers are those of enum gp_form of preempt/code/request.h.
type Form int

// Forms of images.
const (
	FormCubin     Form = iota + 1 // an ELF file with the code of kernels
	FormFatbin                    // several images for several GPUs
	FormPTX                       // text, which ends with a 0
	FormFatbinPTX                 // a fatbin with PTX alone
)

// Image is code for GPUs.
type Image struct {
	Form Form
	Data []byte
}

// PTX says whether the driver's linker has to make a cubin of the image before it can be rewritten.
func (i Image) PTX() bool { return i.Form == FormPTX || i.Form == FormFatbinPTX }

// Images finds the cubins and fatbins of a file: the file itself, or those that a host program or library embeds.
func Images(file []byte) ([]Image, error) {
	if len(file) >= 4 && le.Uint32(file) == fatbinMagic {
		return fatbins(file)
	}
	if len(file) >= elfHeaderSize && string(file[:4]) == "\x7fELF" && le.Uint16(file[18:]) == emCUDA {
		return []Image{{Form: FormCubin, Data: file}}, nil
	}
	host, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return nil, fmt.Errorf("%w: neither cubin, fatbin nor host ELF file", ErrFormat)
	}
	var images []Image
	for _, name := range []string{".nv_fatbin", "__nv_relfatbin"} {
		section := host.Section(name)
		if section == nil || section.Type == elf.SHT_NOBITS {
			continue
		}
		data, err := io.ReadAll(section.Open())
		if err != nil {
			return nil, fmt.Errorf("section %s: %w", name, err)
		}
		found, err := fatbins(data)
		if err != nil {
			return nil, fmt.Errorf("section %s: %w", name, err)
		}
		images = append(images, found...)
	}
	return images, nil
}

// fatbins finds fatbins that stand one behind the other, each at a multiple of 8 bytes.
func fatbins(data []byte) ([]Image, error) {
	var images []Image
	for at := 0; at+fatbinHeaderSize <= len(data); {
		if le.Uint32(data[at:]) != fatbinMagic {
			at += entryAlignment
			continue
		}
		size, err := FatbinSize(data[at:])
		if err != nil {
			return nil, err
		}
		if size > len(data)-at {
			return nil, fmt.Errorf("%w: fatbin cut short", ErrFormat)
		}
		images = append(images, Image{Form: FormFatbin, Data: data[at : at+size]})
		at += (size + entryAlignment - 1) &^ (entryAlignment - 1)
	}
	return images, nil
}

// ImageSize reads the length of a cubin or fatbin from its headers.
func ImageSize(image io.ReaderAt) (int, error) {
	head := make([]byte, elfHeaderSize)
	if _, err := image.ReadAt(head[:fatbinHeaderSize], 0); err != nil {
		return 0, fmt.Errorf("read header: %w", err)
	}
	if le.Uint32(head) == fatbinMagic {
		return FatbinSize(head)
	}
	if string(head[:4]) != "\x7fELF" {
		return 0, fmt.Errorf("%w: neither cubin nor fatbin", ErrFormat)
	}
	if _, err := image.ReadAt(head, 0); err != nil {
		return 0, fmt.Errorf("read ELF header: %w", err)
	}
	if head[4] != 2 || le.Uint16(head[18:]) != emCUDA || le.Uint16(head[58:]) != sectionHeaderSize {
		return 0, fmt.Errorf("%w: not a 64-bit ELF file for CUDA", ErrFormat)
	}
	table, count := le.Uint64(head[40:]), uint64(le.Uint16(head[60:]))
	segments, segmentCount := le.Uint64(head[32:]), uint64(le.Uint16(head[56:]))
	if table > DefaultMaxSize || segments > DefaultMaxSize {
		return 0, ErrTooLarge
	}
	end := max(table+count*sectionHeaderSize, segments+segmentCount*segmentSize)
	headers := make([]byte, count*sectionHeaderSize)
	if _, err := image.ReadAt(headers, int64(table)); err != nil {
		return 0, fmt.Errorf("read section headers: %w", err)
	}
	for ; len(headers) > 0; headers = headers[sectionHeaderSize:] {
		if kind := le.Uint32(headers[4:]); kind == shtNull || kind == shtNobits {
			continue
		}
		offset, size := le.Uint64(headers[24:]), le.Uint64(headers[32:])
		if offset > DefaultMaxSize || size > DefaultMaxSize {
			return 0, ErrTooLarge
		}
		end = max(end, offset+size)
	}
	if end > DefaultMaxSize {
		return 0, ErrTooLarge
	}
	return int(max(end, elfHeaderSize)), nil
}
