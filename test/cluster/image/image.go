// Package image writes container images without a container engine: one layer of given files, in an archive that
// containerd, docker and kind can read. The same files give the same bytes.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Image is an image to write.
type Image struct {
	Ref        string // name and tag, such as registry.local/stoker-agent:dev
	Entrypoint []string
	Cmd        []string
	Env        []string // NAME=value, in addition to PATH
	User       string   // uid, or uid:gid; "" is root
	WorkingDir string
	Files      []File // Write adds the directories /etc and /tmp if they are missing
}

// File is a file, a symbolic link or a directory of an image. Write creates its parent directories.
type File struct {
	Path    string
	From    string      // a file of this machine with the content
	Content []byte      // the content if From is ""
	Link    string      // the target of a symbolic link
	Mode    fs.FileMode // 0 means 0755; with fs.ModeDir it is a directory
	UID     int
	GID     int
}

const (
	media = "application/vnd.oci.image."
	epoch = "1970-01-01T00:00:00Z"
)

// blob is a part of the image, named by its digest.
type blob struct {
	digest string
	size   int64
	open   func() (io.ReadCloser, error)
}

func (b blob) path() string { return "blobs/sha256/" + b.digest }

func (b blob) descriptor(kind string) map[string]any {
	return map[string]any{"mediaType": media + kind, "digest": "sha256:" + b.digest, "size": b.size}
}

// jsonBlob returns a blob with the JSON of v.
func jsonBlob(v any) (blob, error) {
	raw, err := json.Marshal(v)
	sum := sha256.Sum256(raw)
	return blob{hex.EncodeToString(sum[:]), int64(len(raw)), func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(raw)), nil
	}}, err
}

// Write writes the image's archive to the file to. The same path twice in Files is an error, except for a directory.
func Write(to string, i Image) (err error) {
	name, tag, ok := strings.Cut(i.Ref[strings.LastIndexByte(i.Ref, '/')+1:], ":")
	if !ok || name == "" || tag == "" {
		return fmt.Errorf("image %q: want a name and a tag, such as registry.local/agent:dev", i.Ref)
	}
	layer, err := writeLayer(to+".layer", i.Files)
	defer func() { err = errors.Join(err, os.Remove(to+".layer")) }()
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Ref, err)
	}
	config, err := jsonBlob(map[string]any{
		"created": epoch, "architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{
			"Env":        append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, i.Env...),
			"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "User": i.User, "WorkingDir": i.WorkingDir,
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + layer.digest}},
		"history": []any{map[string]any{"created": epoch, "created_by": "test/cluster/image"}},
	})
	if err != nil {
		return err
	}
	manifest, err := jsonBlob(map[string]any{
		"schemaVersion": 2, "mediaType": media + "manifest.v1+json",
		"config": config.descriptor("config.v1+json"), "layers": []any{layer.descriptor("layer.v1.tar")},
	})
	if err != nil {
		return err
	}
	described := manifest.descriptor("manifest.v1+json")
	described["platform"] = map[string]any{"architecture": runtime.GOARCH, "os": "linux"}
	described["annotations"] = map[string]any{"io.containerd.image.name": i.Ref, "org.opencontainers.image.ref.name": tag}
	index, err := jsonBlob(map[string]any{"schemaVersion": 2, "mediaType": media + "index.v1+json", "manifests": []any{described}})
	if err != nil {
		return err
	}
	layout, err := jsonBlob(map[string]any{"imageLayoutVersion": "1.0.0"})
	if err != nil {
		return err
	}
	// manifest.json is for versions of docker load that do not read the OCI layout.
	docker, err := jsonBlob([]any{map[string]any{"Config": config.path(), "RepoTags": []string{i.Ref}, "Layers": []string{layer.path()}}})
	if err != nil {
		return err
	}
	return writeArchive(to, []part{
		{"oci-layout", layout}, {"index.json", index}, {"manifest.json", docker},
		{config.path(), config}, {manifest.path(), manifest}, {layer.path(), layer},
	})
}

// part is one entry of the archive.
type part struct {
	name string
	blob
}

func writeArchive(to string, parts []part) (err error) {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar.NewWriter(f)
	for _, p := range parts {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: p.name, Mode: 0o644, Size: p.size}); err != nil {
			return err
		}
		r, err := p.open()
		if err != nil {
			return err
		}
		_, err = io.Copy(w, r)
		if err = errors.Join(err, r.Close()); err != nil {
			return err
		}
	}
	return w.Close()
}

// writeLayer writes the files, sorted by path, as the only layer of an image.
func writeLayer(to string, files []File) (_ blob, err error) {
	f, err := os.Create(to)
	if err != nil {
		return blob{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := sha256.New()
	l := layerWriter{tar.NewWriter(io.MultiWriter(f, sum)), map[string]bool{}}
	files = append(slices.Clone(files), File{Path: "/etc", Mode: fs.ModeDir | 0o755}, File{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777})
	slices.SortStableFunc(files, func(a, b File) int { return strings.Compare(a.name(), b.name()) })
	for _, file := range files {
		if err := l.add(file); err != nil {
			return blob{}, fmt.Errorf("%s: %w", file.Path, err)
		}
	}
	if err := l.Close(); err != nil {
		return blob{}, err
	}
	info, err := f.Stat()
	if err != nil {
		return blob{}, err
	}
	return blob{hex.EncodeToString(sum.Sum(nil)), info.Size(), func() (io.ReadCloser, error) { return os.Open(to) }}, nil
}

// name returns the file's path in the archive.
func (f File) name() string { return strings.TrimPrefix(path.Clean("/"+f.Path), "/") }

// layerWriter writes the files of a layer and their parent directories.
type layerWriter struct {
	*tar.Writer
	written map[string]bool // by path
}

func (l layerWriter) add(f File) error {
	name := f.name()
	if name == "" {
		return errors.New("a file needs a path")
	}
	if f.Mode.IsDir() {
		return l.dir(name, f)
	}
	if l.written[name] {
		return errors.New("the image has this path twice")
	}
	if err := l.parents(name); err != nil {
		return err
	}
	l.written[name] = true
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: tarMode(f.Mode), Uid: f.UID, Gid: f.GID, Size: int64(len(f.Content))}
	if f.Mode == 0 {
		header.Mode = 0o755
	}
	if f.Link != "" {
		header.Typeflag, header.Linkname, header.Size = tar.TypeSymlink, f.Link, 0
		return l.WriteHeader(header)
	}
	content := io.Reader(bytes.NewReader(f.Content))
	if f.From != "" {
		source, err := os.Open(f.From)
		if err != nil {
			return err
		}
		defer source.Close()
		info, err := source.Stat()
		if err != nil {
			return err
		}
		content, header.Size = source, info.Size()
	}
	if err := l.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(l, content)
	return err
}

func (l layerWriter) parents(name string) error {
	parent := path.Dir(name)
	if parent == "." || l.written[parent] {
		return nil
	}
	return l.dir(parent, File{Mode: fs.ModeDir | 0o755})
}

func (l layerWriter) dir(name string, f File) error {
	if l.written[name] {
		return nil
	}
	if err := l.parents(name); err != nil {
		return err
	}
	l.written[name] = true
	return l.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: tarMode(f.Mode), Uid: f.UID, Gid: f.GID})
}

// tarMode returns the mode bits of a tar header.
func tarMode(mode fs.FileMode) int64 {
	bits := int64(mode.Perm())
	for special, bit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&special != 0 {
			bits |= bit
		}
	}
	return bits
}
