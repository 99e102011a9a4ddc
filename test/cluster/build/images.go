package build

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"

	"stoker.io/stoker/test/cluster/image"
)

// Images on every node.
const (
	PauseImage   = "registry.local/pause:dev"
	CoreDNSImage = "registry.local/coredns:dev"
	BusyboxImage = "registry.local/busybox:dev"
)

// Images returns the archives of the images that every node needs for running pods, and a busybox for init containers.
func (c *Cache) Images(ctx context.Context) ([]string, error) {
	pause, err := c.pauseImage(ctx)
	if err != nil {
		return nil, err
	}
	dns, err := c.dnsImage(ctx)
	if err != nil {
		return nil, err
	}
	box, err := c.busyboxImage(ctx)
	return []string{pause, dns, box}, err
}

func (c *Cache) pauseImage(ctx context.Context) (string, error) {
	key, err := c.key([]string{PauseImage}, filepath.Join(c.SourceDir, "test", "cluster", "pause", "main.go"))
	if err != nil {
		return "", err
	}
	dir, err := c.buildOnce(ctx, "pause", key, func(dir string) error {
		binary := filepath.Join(dir, "pause")
		if err := c.Main(ctx, "./test/cluster/pause", binary); err != nil {
			return err
		}
		return image.Write(filepath.Join(dir, "image.tar"), image.Image{
			Ref: PauseImage, Entrypoint: []string{"/pause"}, Files: []image.File{{Path: "/pause", From: binary}},
		})
	})
	return filepath.Join(dir, "image.tar"), err
}

func (c *Cache) dnsImage(ctx context.Context) (string, error) {
	binary, err := c.coreDNS(ctx)
	if err != nil {
		return "", err
	}
	key, err := c.key([]string{CoreDNSImage, binary})
	if err != nil {
		return "", err
	}
	dir, err := c.buildOnce(ctx, "corednsimage", key, func(dir string) error {
		return image.Write(filepath.Join(dir, "image.tar"), image.Image{
			Ref: CoreDNSImage, Entrypoint: []string{"/coredns"}, Files: []image.File{{Path: "/coredns", From: binary}},
		})
	})
	return filepath.Join(dir, "image.tar"), err
}

// applets are the commands of the busybox image.
var applets = []string{
	"sh", "awk", "cat", "chmod", "chown", "cp", "date", "dd", "df", "du", "echo", "env", "false", "find", "grep", "head", "hostname", "id", "ip",
	"kill", "ln", "ls", "mkdir", "mount", "mv", "nc", "nslookup", "ping", "printf", "ps", "rm", "rmdir", "sed", "sha256sum", "sleep", "sort",
	"stat", "sync", "tail", "tar", "test", "timeout", "touch", "tr", "true", "wc", "wget", "xargs",
}

// busyboxImage wraps the machine's static busybox.
func (c *Cache) busyboxImage(ctx context.Context) (string, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("%w: install the package busybox-static", err)
	}
	dynamic, err := isDynamic(busybox)
	if err != nil {
		return "", err
	}
	if dynamic {
		return "", errors.New(busybox + " needs libraries: install the package busybox-static in its place")
	}
	key, err := c.key(append([]string{BusyboxImage}, applets...), busybox)
	if err != nil {
		return "", err
	}
	dir, err := c.buildOnce(ctx, "busybox", key, func(dir string) error {
		files := []image.File{{Path: "/bin/busybox", From: busybox}}
		for _, name := range applets {
			files = append(files, image.File{Path: "/bin/" + name, Link: "busybox"})
		}
		passwd := "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
		files = append(files, image.File{Path: "/etc/passwd", Content: []byte(passwd), Mode: 0o644})
		return image.Write(filepath.Join(dir, "image.tar"), image.Image{Ref: BusyboxImage, Cmd: []string{"/bin/sh"}, Files: files})
	})
	return filepath.Join(dir, "image.tar"), err
}

// isDynamic reports whether a program needs a dynamic loader, without which it cannot start in an otherwise empty image.
func isDynamic(path string) (bool, error) {
	f, err := elf.Open(path)
	if err != nil {
		return false, err
	}
	dynamic := slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	return dynamic, f.Close()
}

// ProgramImage wraps a static program as an image. The program is the entrypoint, unless the image names one.
func ProgramImage(program, to string, i image.Image) error {
	name := "/" + filepath.Base(program)
	i.Files = append([]image.File{{Path: name, From: program}}, i.Files...)
	if len(i.Entrypoint) == 0 {
		i.Entrypoint = []string{name}
	}
	return image.Write(to, i)
}
