// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package launch_test

import "fmt"

// more are graphs that need each way to launch a kernel: each template, each dtype, each place of arguments and of
// scratch memory.
var more = map[string]string{
	"broadcast bf16": `
graph model.py:1 sync {
  dims a=37@0 b=96@1
  %0: bf16[a,b] = input 0
  %1: bf16[b] = input 1
  %2: bf16[a,1] = input 2
  %3: bf16[a,b] = add %0 %1
  %4: bf16[a,b] = mul %3 %2
  %5: bf16[a,b] = relu %4
  output %5 -> s3
}
`,
	"f16 and f32": `
graph model.py:1 sync {
  dims a=1003@0
  %0: f16[a] = input 0
  %1: f32[a] = cast %0
  %2: f32[a] = input 1
  %3: f32[a] = mul %1 %2
  %4: f16[a] = cast %3
  %5: f16[a] = abs %4
  output %5 -> s2
  output %3 -> s3
}
`,
	"f64 and integers": `
graph model.py:1 sync {
  dims a=513@0
  %0: f64[a] = input 0
  %1: i32[a] = input 1
  %2: f64[] = param 2
  %3: f64[a] = exp %0
  %4: f64[a] = mul %3 %2
  %5: i32[a] = mul %1 %1
  %6: i32[a] = add %5 %1
  output %4 -> s2
  output %6 -> s3
}
`,
	"transpose": `
graph model.py:1 sync {
  dims a=40@0 b=100@1 c=100@2 d=40@3 e=100@4
  %0: f32[a,b] = input 0
  %1: f32[a,b] = exp %0
  %2: f32[c,d]{1,e} = view %1 offset=0
  %3: f32[c,d] = input 1
  %4: f32[c,d] = add %2 %3
  output %4 -> s2
}
`,
	"short rows": `
graph model.py:1 sync {
  dims a=19@0 b=300@1
  %0: f32[a,b] = input 0
  %1: f32[a,1] = amax %0 [1] true
  %2: f32[a,b] = sub %0 %1
  %3: f32[a,b] = exp %2
  %4: f32[a,1] = sum %3 [1] true
  %5: f32[a,b] = div %3 %4
  output %5 -> s1
}
`,
	"short rows bf16": `
graph model.py:1 sync {
  dims a=33@0 b=64@1
  %0: bf16[a,b] = input 0
  %1: f32[a,b] = cast %0
  %2: f32[a,b] = mul %1 %1
  %3: f32[a,1] = sum %2 [1] true
  %4: f32[a,1] = rsqrt %3
  %5: f32[a,b] = mul %1 %4
  %6: bf16[a,b] = cast %5
  output %6 -> s1
}
`,
	"long rows":     normRows(12, 9001),
	"few long rows": normRows(2, 60000),
	"columns": `
graph model.py:1 sync {
  dims a=3000@0 b=40@1
  %0: f32[a,b] = input 0
  %1: f32[a,b] = relu %0
  %2: f32[b] = sum %1 [0] false
  output %2 -> s1
}
`,
	"two sizes": `
graph model.py:1 sync {
  dims a=10000@0 b=77@1
  %0: f32[a] = input 0
  %1: f64[] = param 2
  %2: f32[a] = mul %0 %1
  %3: f32[a] = relu %2
  %4: f32[b] = input 1
  %5: f64[] = param 3
  %6: f32[b] = mul %4 %5
  %7: f32[b] = relu %6
  output %3 -> s2
  output %7 -> s3
}
`,
	// The sum and the number are larger than the largest f16.
	"f16 means": `
graph model.py:1 sync {
  dims a=130@0 b=1000@1
  %0: f16[a,b] = input 0
  %1: f16[a,b] = abs %0
  %2: f16[] = mean %1 ints[] false
  %3: i64[] = param 2
  %4: f16[a,b] = div %1 %3
  output %2 -> s1
  output %4 -> s2
}
`,
	"nothing": `
graph model.py:1 sync {
  dims a=0@0 b=5@1
  %0: f32[a,b] = input 0
  %1: f32[a,b] = exp %0
  %2: f32[a,b] = relu %1
  %3: f32[b] = sum %2 [0] false
  output %2 -> s1
  output %3 -> s2
}
`,
}

// normRows divides each row of an [a, b] tensor by the root of the sum of its squares.
func normRows(a, b int) string {
	return fmt.Sprintf("\ngraph model.py:1 sync {\n  dims a=%d@0 b=%d@1\n", a, b) + `
  %0: f32[a,b] = input 0
  %1: f32[a,b] = mul %0 %0
  %2: f32[a,1] = sum %1 [1] true
  %3: f64[] = param 3
  %4: f32[a,1] = add %2 %3
  %5: f32[a,1] = rsqrt %4
  %6: f32[a,b] = mul %0 %5
  output %6 -> s1
}
`
}
