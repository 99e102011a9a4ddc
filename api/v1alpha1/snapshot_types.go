package v1alpha1

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// SnapshotsSpec says whether the agent keeps what a sync replaces or deletes on a gateway.
type SnapshotsSpec struct {
	// If true, every sync that changes files keeps the earlier ones on the data volume, so that the gateway can be brought back without
	// git. If it becomes false, the next such sync removes all snapshots.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// How many snapshots a gateway keeps.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	RetentionCount int32 `json:"retentionCount,omitempty"`
	// Maximum size of all snapshots of a gateway, a quantity such as 1Gi. The oldest go first. A sync that alone replaces or deletes
	// more fails with LimitExceeded before it changes anything.
	// +optional
	// +kubebuilder:default="1Gi"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,8}(Ki|Mi|Gi)?$`
	MaxSize string `json:"maxSize,omitempty"`
}

// RollbackSpec brings a gateway back to a snapshot.
type RollbackSpec struct {
	// Id of the snapshot, such as area-4-20260212-102000. It begins with the name of the gateway that it is for. The gateway goes back once, and
	// stays there until another commit is the target or stoker.io/force-sync is set.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][-a-zA-Z0-9._]{0,199}-[0-9]{8}-[0-9]{6}(\.tar\.gz)?$`
	ToSnapshot string `json:"toSnapshot,omitempty"`
}

// GatewaySnapshot is a snapshot of a gateway.
type GatewaySnapshot struct {
	// Its id, for spec.rollback.toSnapshot and stoker snapshots restore.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	ID string `json:"id"`
	// Size of the files that it keeps, such as 12Ki.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Size string `json:"size,omitempty"`
	// When it was taken.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	Timestamp *metav1.Time `json:"timestamp,omitempty"`
}

// The defaults of spec.snapshots.
const (
	DefaultRetentionCount  = 5
	DefaultMaxSnapshotSize = "1Gi"
)

const maxRetentionCount = 100

var (
	snapshotID   = regexp.MustCompile(`^([a-zA-Z0-9][-a-zA-Z0-9._]{0,199})-[0-9]{8}-[0-9]{6}$`)
	snapshotSize = regexp.MustCompile(`^[1-9][0-9]{0,8}(Ki|Mi|Gi)?$`)
)

// SnapshotID returns an id of a snapshot without the suffix .tar.gz, or "" if it is none.
func SnapshotID(s string) string {
	s = strings.TrimSuffix(s, ".tar.gz")
	if !snapshotID.MatchString(s) {
		return ""
	}
	return s
}

// SnapshotSize returns a size as spec.snapshots.maxSize has it, in bytes; 0 if it is not valid.
func SnapshotSize(s string) int64 {
	if !snapshotSize.MatchString(s) {
		return 0
	}
	q, err := resource.ParseQuantity(s)
	if err != nil || q.Value() <= 0 {
		return 0
	}
	return q.Value()
}

// snapshots returns a copy of spec.snapshots with the defaults of the CRD, or nil if no snapshots are taken.
func (gs *GatewaySync) snapshots() *SnapshotsSpec {
	s := gs.Spec.Snapshots
	if s == nil || !s.Enabled {
		return nil
	}
	return &SnapshotsSpec{Enabled: true, RetentionCount: or(s.RetentionCount, DefaultRetentionCount), MaxSize: or(s.MaxSize, DefaultMaxSnapshotSize)}
}

func validateSnapshots(path *field.Path, gs *GatewaySync) field.ErrorList {
	var errs field.ErrorList
	if s := gs.Spec.Snapshots; s != nil {
		if s.RetentionCount < 0 || s.RetentionCount > maxRetentionCount {
			errs = append(errs, field.Invalid(path.Child("snapshots", "retentionCount"), s.RetentionCount, "must be between 1 and 100"))
		}
		if s.MaxSize != "" && SnapshotSize(s.MaxSize) == 0 {
			errs = append(errs, invalid(path.Child("snapshots", "maxSize"), s.MaxSize, "must be a number of bytes with Ki, Mi or Gi, such as 1Gi"))
		}
	}
	if r := gs.Spec.Rollback; r != nil && r.ToSnapshot != "" && SnapshotID(r.ToSnapshot) == "" {
		errs = append(errs, invalid(path.Child("rollback", "toSnapshot"), r.ToSnapshot, "must be the id of a snapshot, such as area-4-20260212-102000; stoker snapshots lists them"))
	}
	return errs
}

// maxRestore bounds the annotation stoker.io/restore, in bytes.
const maxRestore = 288

// Restore returns what brings a gateway back to a snapshot: the value of the annotation stoker.io/restore, or spec.rollback.toSnapshot, or "".
func (gs *GatewaySync) Restore() string {
	value := gs.Annotations[AnnotationRestore]
	if len(value) <= maxRestore && utf8.ValidString(value) && !strings.ContainsFunc(value, isControl) && restoredSnapshot(value) != "" {
		return value
	}
	if r := gs.Spec.Rollback; r != nil {
		return SnapshotID(r.ToSnapshot)
	}
	return ""
}

// RestoreValue returns the value of the annotation stoker.io/restore for a snapshot at a time.
func RestoreValue(snapshot string, at time.Time) string {
	return snapshot + " " + at.UTC().Format(time.RFC3339)
}

// RestoresOn returns the snapshot that a value of Restore names if it is one of this gateway, or "".
func RestoresOn(value, gateway string) string {
	id := restoredSnapshot(value)
	if m := snapshotID.FindStringSubmatch(id); m != nil && m[1] == gateway[:min(len(gateway), 200)] {
		return id
	}
	return ""
}

func restoredSnapshot(value string) string {
	name, _, _ := strings.Cut(value, " ")
	return SnapshotID(name)
}

// SizeText returns a number of bytes as GatewaySnapshot.Size has it, rounded up to a tenth of a unit.
func SizeText(bytes int64) string {
	unit, div := "", int64(1)
	for _, u := range []string{"Ki", "Mi", "Gi"} {
		if bytes/div < 1024 {
			break
		}
		unit, div = u, div*1024
	}
	return strconv.FormatFloat(math.Ceil(10*float64(bytes)/float64(div))/10, 'f', -1, 64) + unit
}
