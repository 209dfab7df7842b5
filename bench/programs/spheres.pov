// Reflecting glass spheres over a checkered plane.
#version 3.7;
global_settings { assumed_gamma 1.0 max_trace_level 12 }
camera { location <0, 4, -9> look_at <0, 1, 0> }
light_source { <6, 12, -8> rgb 1 }
plane { y, 0 pigment { checker rgb 0.2, rgb 0.9 } finish { reflection 0.1 } }
#for (X, -3, 3)
  #for (Z, -3, 3)
    sphere {
      <1.2 * X, 0.5, 1.2 * Z>, 0.5
      pigment { rgbt <0.9, 0.95, 1, 0.7> }
      finish { specular 0.6 reflection { 0.2, 0.8 fresnel } conserve_energy }
      interior { ior 1.4 }
    }
  #end
#end
