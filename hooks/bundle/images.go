package bundle

import (
	"fmt"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is an image or a chart of a bundle.
type Image struct {
	Name   string        `json:"name"` // last part of its repository
	Tag    string        `json:"tag"`
	Digest digest.Digest `json:"digest"`
	Chart  bool          `json:"chart,omitempty"`
	Size   int64         `json:"size"` // bytes, of all platforms
	// Referrers is the number of manifests that describe or sign it.
	Referrers int `json:"referrers,omitempty"`
	root      ocispec.Descriptor
	referrers []ocispec.Descriptor
}

// MediaTypeChart is the type of a chart's configuration.
const MediaTypeChart = "application/vnd.cncf.helm.config.v1+json"

// Images returns the images and charts of a bundle.
func (b *Bundle) Images() ([]*Image, error) {
	var images []*Image
	within := map[digest.Digest]*Image{} // manifests, to find the image that a referrer belongs to
	for _, root := range b.Index.Manifests {
		// The chart has no ref name: with one, a runtime that imports the bundle would unpack the chart like an image, and fail.
		name, tag := root.Annotations[ocispec.AnnotationTitle], root.Annotations[ocispec.AnnotationVersion]
		if ref := root.Annotations[ocispec.AnnotationRefName]; ref != "" {
			var ok bool
			if name, tag, ok = strings.Cut(path.Base(ref), ":"); !ok {
				return nil, fmt.Errorf("%s: %.100q is not a repository with a tag", ocispec.ImageIndexFile, ref)
			}
		}
		if name == "" {
			continue // it belongs to an image
		}
		images = append(images, &Image{Name: name, Tag: tag, Digest: root.Digest, root: root})
		if within[root.Digest] == nil { // otherwise it is another tag of the same image
			within[root.Digest] = images[len(images)-1]
		}
	}
	err := b.walk(func(root, d ocispec.Descriptor) error {
		if i := within[root.Digest]; i != nil && (d.Digest != root.Digest || i.Size == 0) { // walk visits the root for each tag
			i.Size += d.Size
			i.Chart = i.Chart || d.MediaType == MediaTypeChart
			if d.MediaType == ocispec.MediaTypeImageManifest && within[d.Digest] == nil {
				within[d.Digest] = i
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, root := range b.Index.Manifests {
		if within[root.Digest] != nil {
			continue
		}
		below, err := b.children(root)
		if err != nil {
			return nil, err
		}
		for _, d := range below { // one of them is the subject of root
			if i := within[d.Digest]; i != nil {
				i.referrers = append(i.referrers, root)
				i.Referrers++
				break
			}
		}
	}
	for _, i := range images {
		same := within[i.Digest]
		i.Size, i.Chart, i.Referrers, i.referrers = same.Size, same.Chart, same.Referrers, same.referrers
	}
	return images, nil
}
