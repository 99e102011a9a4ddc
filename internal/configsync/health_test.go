package configsync

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/internal/configsync/manifest"
)

func TestUnhealthyNamesFailedObject(t *testing.T) {
	job := func(name, status string) *object {
		text := "{apiVersion: batch/v1, kind: Job, metadata: {name: " + name + ", namespace: plant}, status: " + status + "}"
		live := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal([]byte(text), &live.Object))
		return &object{want: manifest.Object{Unstructured: live}, live: live}
	}
	const hasFailed = "{conditions: [{type: Failed, status: 'True'}]}"
	healthy := job("healthy", "{conditions: [{type: Complete, status: 'True'}]}")
	progressing, slow := job("progressing", "{}"), job("slow", "{}")
	failed, other := job("failed", hasFailed), job("other", hasFailed)
	for name, c := range map[string]struct {
		objects []*object
		left    []*object
		example string
		failed  bool
	}{
		"all healthy":                  {[]*object{healthy}, nil, "", false},
		"one in progress":              {[]*object{healthy, progressing}, []*object{progressing}, "Job.batch plant/progressing: ", false},
		"failed object first":          {[]*object{failed, progressing}, []*object{failed, progressing}, "Job.batch plant/failed: ", true},
		"failed object last":           {[]*object{progressing, failed}, []*object{progressing, failed}, "Job.batch plant/failed: ", true},
		"failed object between others": {[]*object{progressing, failed, slow}, []*object{progressing, failed, slow}, "Job.batch plant/failed: ", true},
		"first of several failed":      {[]*object{failed, healthy, other}, []*object{failed, other}, "Job.batch plant/failed: ", true},
	} {
		t.Run(name, func(t *testing.T) {
			left, example, failed := unhealthy(c.objects)
			assert.Equal(t, c.left, left)
			assert.Equal(t, c.failed, failed)
			if c.example == "" {
				assert.Empty(t, example)
			} else {
				assert.Contains(t, example, c.example)
			}
		})
	}
}
