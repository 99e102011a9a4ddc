package verdicts

import (
	"cmp"
	"maps"
	"strings"
)

func storage() []Case {
	in := func(o O) O { return O{"snapshots": O{"enabled": true, "storage": o}} }
	s3 := func(key string, value any) O { return in(O{"type": "s3", "s3": O{"bucket": "backups", key: value}}) }
	const s3Field = "spec.snapshots.storage.s3."
	cases := each([]string{"", "ab", "Backups", "-backups", "a/b", strings.Repeat("b", 64)}, "the bucket", func(name, v string) Case { return bad(name, s3Field+"bucket", s3("bucket", v)) })
	cases = append(cases, each([]string{"stoker", "/", "/stoker/", "../", "a/../", "a//", "a b/", strings.Repeat("a", 256) + "/"}, "the prefix",
		func(name, v string) Case { return bad(name, s3Field+"keyPrefix", s3("keyPrefix", v)) })...)
	cases = append(cases, each([]string{"ftp://minio", "https://", "https://minio/path", "http://user:password@minio", "minio:port", "minio?x", "a b", "[::1", strings.Repeat("a", 256)}, "the endpoint",
		func(name, v string) Case { return bad(name, s3Field+"endpoint", s3("endpoint", v)) })...)
	cases = append(cases, each([]string{"minio.example.com", "https://minio:9000", "http://minio.storage.svc:9000", "https://[fd00::1]:9000", "10.0.0.1"}, "the endpoint",
		func(name, v string) Case { return good(name, s3("endpoint", v)) })...)
	gcs := func(o O) O {
		o["bucket"] = cmp.Or(o["bucket"], any("backups"))
		return in(O{"type": "gcs", "gcs": o})
	}
	key := O{"name": "gcs", "key": "key.json"}
	const gcsField = "spec.snapshots.storage.gcs."
	cases = append(cases, each([]string{"ab", "Backups", "_backups", "a/b", strings.Repeat("b", 223)}, "the bucket of GCS",
		func(name, v string) Case { return bad(name, gcsField+"bucket", gcs(O{"bucket": v})) })...)
	cases = append(cases, each([]string{"storage.example.com", "http://storage.googleapis.com", "googleapis.com", "storage.googleapis.com.example.com", "storage.googleapis.com:8443",
		"examplegoogleapis.com", "https://x/googleapis.com", "169.254.169.254"}, "the endpoint without a Secret",
		func(name, v string) Case { return bad(name, gcsField+"endpoint", gcs(O{"endpoint": v})) })...)
	cases = append(cases, each([]string{"storage.googleapis.com", "https://storage-plants.p.googleapis.com", "storage.europe-west3.rep.googleapis.com:443"}, "the endpoint without a Secret",
		func(name, v string) Case { return good(name, gcs(O{"endpoint": v})) })...)
	azure := func(o O) O {
		all := O{"account": "plants", "container": "backups"}
		maps.Copy(all, o)
		return in(O{"type": "azure", "azure": all})
	}
	const azureField = "spec.snapshots.storage.azure."
	cases = append(cases, each([]string{"ab", "Plants", "plants-a", strings.Repeat("a", 25)}, "the account", func(name, v string) Case { return bad(name, azureField+"account", azure(O{"account": v})) })...)
	cases = append(cases, each([]string{"ab", "Backups", "back--ups", "-backups", "backups-", "$root", "a.b.c", strings.Repeat("a", 64)}, "the container",
		func(name, v string) Case { return bad(name, azureField+"container", azure(O{"container": v})) })...)
	cases = append(cases, each([]string{"blob.example.com", "http://plants.blob.core.windows.net", "blob.core.windows.net", "plants.blob.core.windows.net.example.com", "plants.file.core.windows.net",
		"plants.blob.core.windows.net:10000", "169.254.169.254"}, "the endpoint of Azure without a Secret", func(name, v string) Case { return bad(name, azureField+"endpoint", azure(O{"endpoint": v})) })...)
	cases = append(cases, each([]string{"plants.blob.core.windows.net", "https://plants.blob.core.chinacloudapi.cn:443", "plants.z12.blob.storage.azure.net"}, "the endpoint of Azure without a Secret",
		func(name, v string) Case { return good(name, azure(O{"endpoint": v})) })...)
	return append(cases,
		good("a container of Azure", azure(O{})),
		good("every field of Azure", azure(O{"keyPrefix": "stoker/", "endpoint": "http://azurite:10000", "secretRef": key})),
		bad("type azure without a container", "spec.snapshots.storage.azure", in(O{"type": "azure"})),
		bad("a container without type azure", "spec.snapshots.storage.azure", in(O{"azure": O{"account": "plants", "container": "backups"}})),
		bad("a key prefix of Azure that begins with a slash", azureField+"keyPrefix", azure(O{"keyPrefix": "/stoker"})),
		bad("a Secret of Azure without a key", azureField+"secretRef.key", azure(O{"secretRef": O{"name": "azure"}})),
		good("a bucket of GCS", gcs(O{})),
		good("every field of GCS", gcs(O{"bucket": "plant_backups.example.com", "keyPrefix": "stoker/", "endpoint": "http://gcs:4443", "secretRef": key})),
		bad("type gcs without a bucket", "spec.snapshots.storage.gcs", in(O{"type": "gcs"})),
		bad("a bucket without type gcs", "spec.snapshots.storage.gcs", in(O{"gcs": O{"bucket": "backups"}})),
		bad("the bucket of another type", "spec.snapshots.storage.s3", in(O{"type": "s3", "gcs": O{"bucket": "backups"}})),
		bad("a key prefix of GCS that begins with a slash", gcsField+"keyPrefix", gcs(O{"keyPrefix": "/stoker"})),
		bad("a path in the endpoint of GCS", gcsField+"endpoint", gcs(O{"endpoint": "gcs/path", "secretRef": key})),
		bad("a Secret of GCS without a key", gcsField+"secretRef.key", gcs(O{"secretRef": O{"name": "gcs"}})),
		good("a backup before each sync", O{"snapshots": O{"enabled": true, "gatewayBackup": "beforeSync"}}),
		bad("an unknown value of gatewayBackup", "spec.snapshots.gatewayBackup", O{"snapshots": O{"gatewayBackup": "afterSync"}}),
		good("storage on the data volume", in(O{"type": "pvc"})),
		good("storage without a type", in(O{})),
		good("every field of S3", in(O{"type": "s3", "s3": O{"bucket": "plant.backups", "keyPrefix": "stoker/site-a/", "endpoint": "minio:9000", "region": "eu-central-1",
			"pathStyle": true, "secretRef": O{"name": "s3", "key": "credentials"}}})),
		bad("an unknown type of storage", "spec.snapshots.storage.type", in(O{"type": "nfs"})),
		bad("type s3 without a bucket", "spec.snapshots.storage.s3", in(O{"type": "s3"})),
		bad("a bucket without type s3", "spec.snapshots.storage.s3", in(O{"s3": O{"bucket": "backups"}})),
		bad("a region in upper case", s3Field+"region", s3("region", "EU")),
		bad("a Secret without a key", s3Field+"secretRef.key", s3("secretRef", O{"name": "s3"})),
	)
}
