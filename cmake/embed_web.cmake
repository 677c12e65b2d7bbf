# Writes the files of FOLDER as the C++ source OUTPUT; run by tidepool_embed_web().
set(types html "text/html\\; charset=utf-8" js "text/javascript\\; charset=utf-8" css "text/css\\; charset=utf-8"
  svg "image/svg+xml")
file(GLOB files ${FOLDER}/*)
list(SORT files)
set(arrays "")
set(table "")
set(index 0)
foreach(file ${files})
  get_filename_component(name ${file} NAME)
  get_filename_component(extension ${file} LAST_EXT)
  string(SUBSTRING ${extension} 1 -1 extension)
  list(FIND types ${extension} at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${file}: cmake/embed_web.cmake knows no content type for .${extension}; add it there")
  endif()
  math(EXPR at "${at} + 1")
  list(GET types ${at} type)
  file(READ ${file} bytes HEX)
  # A list of characters: compilers need not read a literal of more than 65,536.
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
  string(REGEX REPLACE "(('\\\\x..',)('\\\\x..',)?('\\\\x..',)?('\\\\x..',)?('\\\\x..',)?('\\\\x..',)?('\\\\x..',)?('\\\\x..',)?)" "\\1\n" bytes "${bytes}")
  string(APPEND arrays "constexpr char kFile${index}[] = {\n${bytes}};\n")
  string(APPEND table "    {\"/${name}\", \"${type}\", {kFile${index}, sizeof(kFile${index})}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUTPUT} "// Written by cmake/embed_web.cmake.\n#include \"server/web_assets.h\"\n\nnamespace tidepool {\nnamespace {\n\n"
  "${arrays}\nconstexpr WebAsset kAssets[] = {\n${table}};\n\n}  // namespace\n\n"
  "std::span<const WebAsset> web_assets() { return kAssets; }\n\n}  // namespace tidepool\n")
