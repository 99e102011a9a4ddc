package syntax

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

var (
	sizeRegexp   = regexp.MustCompile(`^[1-9][0-9]{0,8}(Ki|Mi)?$`)
	snapshotSize = regexp.MustCompile(`^[1-9][0-9]{0,8}(Ki|Mi|Gi)?$`)
)

const maxSize = 16

// ParseSize parses a number of bytes, with an optional unit Ki or Mi. The problem says what is wrong with s; it is empty if s is valid.
func ParseSize(s string) (bytes int64, problem string) {
	const wrong = "is not a size; use a whole number of bytes, Ki or Mi, such as 10Mi"
	if len(s) > maxSize || !sizeRegexp.MatchString(s) {
		return 0, wrong
	}
	unit := int64(1)
	digits, ok := strings.CutSuffix(s, "Ki")
	if ok {
		unit = 1 << 10
	} else if digits, ok = strings.CutSuffix(s, "Mi"); ok {
		unit = 1 << 20
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, wrong
	}
	return n * unit, ""
}

// SnapshotSize returns a value of spec.snapshots.maxSize in bytes; 0 if it is invalid.
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

// SizeText returns a number of bytes as GatewaySnapshot.Size has it, rounded up to a tenth of a unit.
func SizeText(bytes int64) string {
	unit, divisor := "", int64(1)
	for _, larger := range []string{"Ki", "Mi", "Gi"} {
		if bytes/divisor < 1024 {
			break
		}
		unit, divisor = larger, divisor*1024
	}
	return strconv.FormatFloat(math.Ceil(10*float64(bytes)/float64(divisor))/10, 'f', -1, 64) + unit
}
